//! The virtual environment, which also is the one that runs pip.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use xshell::{Shell, cmd};

use crate::workspace::Workspace;

/// A virtual environment that holds what `xtask/requirements.txt` lists.
pub(crate) struct Python {
    interpreter: PathBuf,
}

impl Python {
    /// The path of its `python`.
    pub(crate) fn interpreter(&self) -> &Path {
        &self.interpreter
    }

    /// Runs pip quietly. If it fails, the error has pip's own words.
    pub(crate) fn pip(&self, shell: &Shell, arguments: &[&str]) -> Result<()> {
        let python = &self.interpreter;
        let output = cmd!(
            shell,
            "{python} -m pip --disable-pip-version-check --quiet {arguments...}"
        )
        .quiet()
        .ignore_status()
        .output()?;
        if !output.status.success() {
            bail!(
                "pip {} failed:\n{}{}",
                arguments.join(" "),
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Ok(())
    }
}

/// Finds the environment, or makes it. It is made anew when the requirements
/// are not those it was made from, of which it keeps a copy, written last.
pub(super) fn get(workspace: &Workspace) -> Result<Python> {
    let requirements = workspace.path("xtask/requirements.txt");
    let wanted =
        fs::read_to_string(&requirements).with_context(|| requirements.display().to_string())?;
    let folder = workspace.path(".deps/python");
    let stamp = folder.join("requirements.txt");
    let python = Python {
        interpreter: folder.join("bin/python"),
    };
    // An environment is bound to the interpreter that made it. `exists` follows
    // the link to that one, so its removal is noticed.
    if python.interpreter.exists() && fs::read_to_string(&stamp).is_ok_and(|text| text == wanted) {
        return Ok(python);
    }

    eprintln!("    making the Python environment in .deps/python");
    let shell = workspace.shell()?;
    check_host(&shell)?;
    match fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    cmd!(shell, "python3 -m venv {folder}").quiet().run()?;
    // Wheels only: building one from source would need tools that nobody asked for.
    let list = requirements.to_string_lossy();
    python.pip(
        &shell,
        &["install", "--only-binary=:all:", "--requirement", &list],
    )?;
    fs::write(&stamp, wanted)?;
    Ok(python)
}

/// Says what to install when the machine cannot make an environment. Debian
/// splits python3-venv from python3, and what is missing then is `ensurepip`.
fn check_host(shell: &Shell) -> Result<()> {
    let probe = "import ensurepip, venv";
    let output = cmd!(shell, "python3 -c {probe}")
        .quiet()
        .ignore_status()
        .output()
        .context("python3 does not start: `apt-get install python3 python3-venv`")?;
    ensure!(
        output.status.success(),
        "python3 cannot make virtual environments: `apt-get install python3-venv`\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}
