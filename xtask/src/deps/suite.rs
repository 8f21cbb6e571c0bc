//! The models of the dm_control suite: robots that load in every MuJoCo release.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::python::Python;
use super::wheel;
use crate::workspace::Workspace;

const PACKAGE: &str = "dm-control==1.0.50";

/// Finds the models in `.deps/`, or gets them, for which `python` is called.
pub(super) fn get<'p>(
    workspace: &Workspace,
    python: impl FnOnce() -> Result<&'p Python>,
) -> Result<PathBuf> {
    let folder = workspace.path(".deps/dm_control");
    let stamp = folder.join("package.txt");
    if !fs::read_to_string(&stamp).is_ok_and(|text| text == PACKAGE) {
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        // Every model but `dog.xml`, the only one that needs meshes, and 20 MB of
        // them; the others include nothing but what is in `common`.
        let files = [
            "dm_control/suite/[!d]*.xml=suite",
            "dm_control/suite/common/*.xml=suite/common",
        ];
        wheel::get(workspace, python()?, PACKAGE, &files, &folder)
            .context("cannot get the models of dm_control")?;
        fs::write(&stamp, PACKAGE)?;
    }
    Ok(folder.join("suite"))
}
