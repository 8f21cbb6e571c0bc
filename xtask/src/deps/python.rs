//! Virtual environments: one that runs pip and the other tools, and one for each MuJoCo
//! release whose Python package is tested with.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use xshell::{Shell, cmd};

use crate::workspace::Workspace;

/// A virtual environment that holds what a list in `xtask/requirements/` names.
pub(crate) struct Python {
    folder: PathBuf,
}

impl Python {
    /// The path of its `python`.
    pub(crate) fn interpreter(&self) -> PathBuf {
        self.folder.join("bin/python")
    }

    /// The list of what was installed at first, a copy of its own with nothing to include.
    pub(crate) fn list(&self) -> PathBuf {
        self.folder.join("requirements.txt")
    }

    /// Makes an environment that has nothing but pip.
    pub(crate) fn fresh(shell: &Shell, folder: PathBuf) -> Result<Self> {
        cmd!(shell, "python3 -m venv {folder}").quiet().run()?;
        Ok(Self { folder })
    }

    /// Runs it quietly and returns what it printed. If it fails, the error has its words.
    pub(crate) fn run(&self, shell: &Shell, arguments: &[&str]) -> Result<String> {
        let python = self.interpreter();
        let output = cmd!(shell, "{python} {arguments...}")
            .quiet()
            .ignore_status()
            .output()?;
        let words = |bytes| String::from_utf8_lossy(bytes).into_owned();
        if !output.status.success() {
            bail!(
                "python {} failed:\n{}{}",
                arguments.join(" "),
                words(&output.stdout),
                words(&output.stderr)
            );
        }
        Ok(words(&output.stdout))
    }

    /// Runs its pip.
    pub(crate) fn pip(&self, shell: &Shell, arguments: &[&str]) -> Result<()> {
        let pip = ["-m", "pip", "--disable-pip-version-check", "--quiet"];
        self.run(shell, &[&pip, arguments].concat()).map(drop)
    }

    /// Whether it has a package, which its list may name for some Pythons only.
    pub(crate) fn has(&self, shell: &Shell, package: &str) -> Result<bool> {
        let find = "import importlib.util, sys; print(importlib.util.find_spec(sys.argv[1]))";
        Ok(self.run(shell, &["-c", find, package])?.trim() != "None")
    }
}

/// Finds the environment of the tools, or makes it. It has pip, and serves to fill the
/// others.
pub(super) fn tools(workspace: &Workspace) -> Result<Python> {
    get(workspace, "tools", |shell, folder, list| {
        check_host(shell)?;
        let python = Python::fresh(shell, folder.to_owned())?;
        install(shell, &python, &[], list)
    })
}

/// Finds the environment that has this MuJoCo release, or makes it.
pub(super) fn with_mujoco<'p>(
    workspace: &Workspace,
    version: &str,
    tools: impl FnOnce() -> Result<&'p Python>,
) -> Result<Python> {
    get(
        workspace,
        &format!("mujoco-{version}"),
        |shell, folder, list| {
            let tools = tools()?;
            cmd!(shell, "python3 -m venv --without-pip {folder}")
                .quiet()
                .run()?;
            install(shell, tools, &["--python", &folder.to_string_lossy()], list)
        },
    )
}

/// Finds `.deps/venv/NAME`, or has it made by `make`. It is made anew when the list is not
/// the one that it was made from, of which it keeps a copy, written last.
fn get(
    workspace: &Workspace,
    name: &str,
    make: impl FnOnce(&Shell, &Path, &Path) -> Result<()>,
) -> Result<Python> {
    let list = workspace
        .path("xtask/requirements")
        .join(format!("{name}.txt"));
    let wanted = read_list(&list)?;
    let folder = workspace.path(".deps/venv").join(name);
    let python = Python { folder };
    let stamp = python.list();
    // An environment is bound to the interpreter that made it. `exists` follows
    // the link to that one, so its removal is noticed.
    if python.interpreter().exists() && fs::read_to_string(&stamp).is_ok_and(|text| text == wanted)
    {
        return Ok(python);
    }

    eprintln!("    making the Python environment `{name}`");
    match fs::remove_dir_all(&python.folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    make(&workspace.shell()?, &python.folder, &list)
        .with_context(|| format!("cannot make the Python environment `{name}`"))?;
    fs::write(&stamp, wanted)?;
    Ok(python)
}

/// Installs what the list names and nothing else. `pip` is the environment that has pip,
/// `whereto` its options that say for which environment it works.
fn install(shell: &Shell, pip: &Python, whereto: &[&str], list: &Path) -> Result<()> {
    let list = list.to_string_lossy();
    // Wheels only: building one from source would need tools that nobody asked for.
    // Compiled when they are imported: few of the files are.
    let what = [
        "install",
        "--no-deps",
        "--only-binary=:all:",
        "--no-compile",
        "--requirement",
        &list,
    ];
    pip.pip(shell, &[whereto, &what].concat())?;
    pip.pip(shell, &[whereto, &["check"]].concat())
}

/// The text of a list of requirements with that of the lists it includes.
fn read_list(path: &Path) -> Result<String> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let mut whole = String::new();
    for line in text.lines() {
        match line.strip_prefix("-r ") {
            Some(other) => whole += &read_list(&path.with_file_name(other))?,
            None => whole += &format!("{line}\n"),
        }
    }
    Ok(whole)
}

/// Says what to install when the machine cannot make an environment. Debian
/// splits python3-venv from python3, and what is missing then is `ensurepip`.
fn check_host(shell: &Shell) -> Result<()> {
    let probe = "import sys, ensurepip, venv; assert (3, 11) <= sys.version_info[:2] <= (3, 13)";
    let output = cmd!(shell, "python3 -c {probe}")
        .quiet()
        .ignore_status()
        .output()
        .context("python3 does not start: `apt-get install python3 python3-venv`")?;
    ensure!(
        output.status.success(),
        "python3 must be 3.11, 3.12 or 3.13, for which MuJoCo 4.0.0 has wheels, and able \
         to make virtual environments: `apt-get install python3-venv`\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::read_list;

    #[test]
    fn a_list_includes_others() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.txt"), "-r b.txt\nx==1\n").unwrap();
        fs::write(folder.path().join("b.txt"), "y==2\n").unwrap();
        let whole = read_list(&folder.path().join("a.txt")).unwrap();
        assert_eq!(whole, "y==2\nx==1\n");
    }
}
