//! Files out of a wheel on PyPI, without installing the package.

use std::env::consts::ARCH;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use xshell::cmd;

use super::python::Python;
use crate::workspace::Workspace;

/// Puts files of the wheel `requirement` (`package==version`) into `folder`,
/// which does not exist yet. Each of `files` is a pattern of paths in the wheel
/// and the folder below `folder` that they go to, joined by `=`.
pub(super) fn get(
    workspace: &Workspace,
    python: &Python,
    requirement: &str,
    files: &[&str],
    folder: &Path,
) -> Result<()> {
    eprintln!("    getting {requirement}");
    let shell = workspace.shell()?;
    let parent = folder.parent().context("a folder without a parent")?;
    fs::create_dir_all(parent)?;
    // Beside the folder that it becomes, since a rename cannot cross file systems.
    let scratch = tempfile::Builder::new()
        .prefix(".unfinished-")
        .tempdir_in(parent)?;

    let download = scratch.path().join("download");
    download_wheel(workspace, python, requirement, &download)?;
    let wheels: Vec<_> = fs::read_dir(&download)?.collect::<Result<_, _>>()?;
    ensure!(wheels.len() == 1, "{requirement} is not one wheel");
    let wheel = wheels[0].path();

    let unpacked = scratch.path().join("unpacked");
    let interpreter = python.interpreter();
    cmd!(
        shell,
        "{interpreter} xtask/unpack_wheel.py {wheel} {unpacked} {files...}"
    )
    .quiet()
    .run()?;

    match fs::rename(&unpacked, folder) {
        // Another run was faster, and what it got is the same.
        Err(_) if folder.exists() => Ok(()),
        other => other.with_context(|| format!("cannot make {}", folder.display())),
    }
}

/// Downloads one wheel. The wheel is the one for CPython 3.11 whatever the
/// host's Python is: files that do not depend on it should not depend on it.
fn download_wheel(
    workspace: &Workspace,
    python: &Python,
    requirement: &str,
    folder: &Path,
) -> Result<()> {
    // pip does not know that a system which takes the one takes the others.
    let platforms = [
        "manylinux_2_28",
        "manylinux_2_27",
        "manylinux_2_17",
        "manylinux2014",
    ]
    .map(|platform| format!("--platform={platform}_{ARCH}"));
    let destination = format!("--dest={}", folder.display());
    let mut arguments = vec![
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--python-version=3.11",
        "--implementation=cp",
        "--abi=cp311",
        &destination,
    ];
    arguments.extend(platforms.iter().map(String::as_str));
    arguments.push(requirement);
    python.pip(&workspace.shell()?, &arguments)
}
