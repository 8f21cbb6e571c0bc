//! The verb `package`: makes the sdist and the wheel of the Python package, and tries
//! them as a user would who has nothing but pip, cargo and a Rust compiler.
//!
//! ```text
//! target/package/dist/   the sdist, and the wheel that was built from it
//! target/package/tree/   the wheel that was built from the checkout
//! target/package/venv/   a fresh environment that they are installed into
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Result, bail, ensure};
use pico_args::Arguments;
use xshell::Shell;

use crate::deps::{Deps, Python};
use crate::readme;
use crate::step::step;
use crate::workspace::Workspace;

/// The verb.
pub(crate) fn main(workspace: &Workspace, arguments: Arguments) -> Result<()> {
    crate::no_more(arguments)?;
    run(workspace, &Deps::new(workspace)?)
}

/// Makes the distributions and tries them.
pub(crate) fn run(workspace: &Workspace, deps: &Deps<'_>) -> Result<()> {
    let (folder, shell) = (workspace.target("package"), workspace.shell()?);
    // So that pip, which builds in environments of their own, takes the tools' versions.
    let pins = deps.tools()?.list();
    shell.set_var("PIP_CONSTRAINT", pins);
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }

    let wheel = step("build the sdist and the wheels", || {
        distributions(&shell, deps.tools()?, &folder)
    })?;
    let fresh = step("install the wheel where nothing else is", || {
        let fresh = Python::fresh(&shell, folder.join("venv"))?;
        let (wheel, pins) = (wheel.to_string_lossy(), deps.newest_python()?.list());
        let pins = format!("--constraint={}", pins.display());
        let options = ["--only-binary=:all:", "--no-compile", &pins];
        fresh.pip(&shell, &[&["install"], &options[..], &[&wheel]].concat())?;
        fresh.pip(&shell, &["check"])?;
        try_package(workspace, &shell, &fresh, &folder.join("venv"))?;
        Ok(fresh)
    })?;
    step("install the checkout for editing", || {
        let start = SystemTime::now();
        fresh.pip(&shell, &["install", "--no-deps", "--editable", "."])?;
        let package = workspace.path("python/rollout");
        let library = fs::metadata(package.join("librollout.so"))?;
        ensure!(
            library.modified()? >= start,
            "no library was put beside the sources"
        );
        try_package(workspace, &shell, &fresh, &package)
    })
}

/// Builds the sdist, the wheel from it, and the wheel from the checkout, which must be the
/// same to the byte. Returns the path of the wheel.
fn distributions(shell: &Shell, tools: &Python, folder: &Path) -> Result<PathBuf> {
    let [dist, tree] = ["dist", "tree"].map(|name| folder.join(name));
    let [to_dist, to_tree] = [&dist, &tree].map(|folder| folder.to_string_lossy());
    // The one with the tools' environment, the other with one that pip makes.
    tools.run(
        shell,
        &["-m", "build", "--no-isolation", "--outdir", &to_dist, "."],
    )?;
    tools.pip(shell, &["wheel", "--no-deps", "--wheel-dir", &to_tree, "."])?;

    let (from_sdist, from_tree) = (the_wheel(&dist)?, the_wheel(&tree)?);
    let [one, other] = [&from_sdist, &from_tree].map(|wheel| wheel.to_string_lossy());
    if fs::read(&from_sdist)? != fs::read(&from_tree)? {
        let names = tools.run(shell, &["-c", DIFFERENCE, &one, &other])?;
        bail!("{one} and {other} differ in {names}");
    }
    Ok(from_sdist)
}

/// Prints which files two wheels do not both have with the same contents.
const DIFFERENCE: &str = "
import sys, zipfile
wheels = [zipfile.ZipFile(path) for path in sys.argv[1:]]
one, other = [{(name, wheel.read(name)) for name in wheel.namelist()} for wheel in wheels]
print(sorted({name for name, _ in one ^ other}))
";

/// The one wheel in a folder.
fn the_wheel(folder: &Path) -> Result<PathBuf> {
    let mut wheels = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "whl") {
            wheels.push(path);
        }
    }
    ensure!(wheels.len() == 1, "not one wheel: {wheels:?}");
    Ok(wheels.remove(0))
}

/// Imports the package, which must come from the folder `home`, and runs README's example.
fn try_package(workspace: &Workspace, shell: &Shell, python: &Python, home: &Path) -> Result<()> {
    let file = python.run(shell, &["-c", "import rollout; print(rollout.__file__)"])?;
    ensure!(Path::new(file.trim()).starts_with(home), "it is {file}");
    readme::run_python(workspace, &python.interpreter())
}
