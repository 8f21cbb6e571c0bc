//! The checkout: where its folders are, and the library that is built from it.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process;

use anyhow::{Context, Result};
use once_cell::sync::OnceCell;
use xshell::{Shell, cmd};

/// The checkout that this program was built from.
pub(crate) struct Workspace {
    root: PathBuf,
    target: PathBuf,
    library: OnceCell<PathBuf>,
}

impl Workspace {
    /// Finds the root and asks cargo for its target folder, which the user's
    /// configuration or environment (`CARGO_TARGET_DIR`) may have moved.
    pub(crate) fn find() -> Result<Self> {
        // `cargo run` tells at run time where the package is, which stays true
        // when a checkout was moved after it was built.
        let package = env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let root = package
            .parent()
            .context("xtask has no parent folder")?
            .to_owned();
        let shell = shell_at(&root)?;
        let metadata = cmd!(shell, "cargo metadata --no-deps --format-version 1")
            .quiet()
            .read()?;
        let metadata: serde_json::Value = serde_json::from_str(&metadata)?;
        let target = metadata["target_directory"]
            .as_str()
            .context("cargo metadata names no target_directory")?
            .into();
        Ok(Self {
            root,
            target,
            library: OnceCell::new(),
        })
    }

    /// A shell whose working directory is the root.
    pub(crate) fn shell(&self) -> Result<Shell> {
        shell_at(&self.root)
    }

    /// The path of `inner` in the checkout.
    pub(crate) fn path(&self, inner: &str) -> PathBuf {
        self.root.join(inner)
    }

    /// The path of `inner` in cargo's target folder.
    pub(crate) fn target(&self, inner: &str) -> PathBuf {
        self.target.join(inner)
    }

    /// The root of the checkout.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The folder of `librollout.so` and `librollout.a`, which are built first,
    /// once per run.
    pub(crate) fn library(&self) -> Result<&Path> {
        let folder = self.library.get_or_try_init(|| -> Result<PathBuf> {
            let shell = self.shell()?;
            cmd!(shell, "cargo build --release --package rollout-ffi")
                .quiet()
                .run()?;
            let folder = self.target("release");
            link_soname(&shell, &folder)?;
            Ok(folder)
        })?;
        Ok(folder)
    }

    /// The folder that Python finds the package in, with the library that a wheel gets,
    /// which is built first, beside the package's files.
    pub(crate) fn package(&self) -> Result<PathBuf> {
        let (shell, folder) = (self.shell()?, self.path("python"));
        cmd!(
            shell,
            "cargo build --profile wheel --package rollout-python"
        )
        .quiet()
        .run()?;
        replace(
            &self.target("wheel/librollout_python.so"),
            &folder.join("rollout/librollout.so"),
        )?;
        Ok(folder)
    }
}

/// Puts a file in the place of another, which a running process may have loaded, in one go.
fn replace(source: &Path, target: &Path) -> Result<()> {
    let mut name = OsString::from(".");
    name.push(target.file_name().context("a target without a name")?);
    name.push(format!(".{}", process::id()));
    let unfinished = target.with_file_name(name);
    fs::copy(source, &unfinished)
        .and_then(|_| fs::rename(&unfinished, target))
        .with_context(|| format!("cannot make {}", target.display()))
}

/// Gives the shared library its soname as a second file name. A program asks for
/// the library by that name when it starts, and cargo does not make such links.
fn link_soname(shell: &Shell, folder: &Path) -> Result<()> {
    let library = folder.join("librollout.so");
    let dynamic = cmd!(shell, "readelf --dynamic --wide {library}")
        .env("LC_ALL", "C")
        .quiet()
        .read()
        .context("readelf comes with the C compiler: `apt-get install build-essential`")?;
    let soname = dynamic
        .lines()
        .find_map(|line| line.split_once("soname: [")?.1.strip_suffix(']'));
    let Some(soname) = soname.filter(|&name| name != "librollout.so") else {
        return Ok(());
    };
    match symlink("librollout.so", folder.join(soname)) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        other => other.with_context(|| format!("cannot make the link {soname}")),
    }
}

fn shell_at(folder: &Path) -> Result<Shell> {
    let shell = Shell::new()?;
    shell.change_dir(folder);
    Ok(shell)
}
