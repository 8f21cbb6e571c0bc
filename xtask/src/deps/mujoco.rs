//! Headers and library of a MuJoCo release.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::python::Python;
use super::wheel;
use crate::workspace::Workspace;

/// A release that is there to be compiled and linked against.
pub(crate) struct Mujoco {
    version: String,
    folder: PathBuf,
}

impl Mujoco {
    /// As PyPI writes it: `3.0.0`.
    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// The folder that holds `mujoco/mujoco.h`.
    pub(crate) fn include(&self) -> PathBuf {
        self.folder.join("include")
    }

    /// The text of one of its headers, empty if it has none of that name.
    pub(crate) fn header(&self, name: &str) -> String {
        fs::read_to_string(self.include().join("mujoco").join(name)).unwrap_or_default()
    }

    /// The folder that holds the library.
    pub(crate) fn lib(&self) -> PathBuf {
        self.folder.join("lib")
    }

    /// The file name of the library. It has no unversioned name to link by.
    pub(crate) fn lib_name(&self) -> String {
        format!("libmujoco.so.{}", self.version)
    }
}

/// Finds a release in `.deps/`, or gets it, for which `python` is called.
pub(super) fn get<'p>(
    workspace: &Workspace,
    version: &str,
    python: impl FnOnce() -> Result<&'p Python>,
) -> Result<Mujoco> {
    let folder = workspace.path(".deps/mujoco").join(version);
    if !folder.exists() {
        unpack(workspace, python()?, version, &folder)
            .with_context(|| format!("cannot get MuJoCo {version}"))?;
    }
    Ok(Mujoco {
        version: version.to_owned(),
        folder,
    })
}

fn unpack(workspace: &Workspace, python: &Python, version: &str, folder: &Path) -> Result<()> {
    // From 4.0.0 on the C library is a package of its own.
    let major: u32 = version
        .split('.')
        .next()
        .unwrap_or_default()
        .parse()
        .context("not a version")?;
    let package = if major < 4 { "mujoco" } else { "mujoco-core" };
    // The headers of experimental parts, in folders of their own, are left out.
    let files = [
        "mujoco/include/mujoco/*.h=include/mujoco",
        "mujoco/libmujoco.so*=lib",
    ];
    wheel::get(
        workspace,
        python,
        &format!("{package}=={version}"),
        &files,
        folder,
    )
}
