//! What comes from outside, all of it in `.deps/` and all of it from PyPI by pip:
//!
//! ```text
//! .deps/python/                      a virtual environment with xtask/requirements.txt
//! .deps/mujoco/3.0.0/include/mujoco/ the release's headers
//! .deps/mujoco/3.0.0/lib/            its libmujoco.so.3.0.0
//! .deps/dm_control/suite/            the models of the dm_control suite
//! ```
//!
//! Every piece is got when something first asks for it, once per run. It is
//! made under another name and renamed (the environment, which cannot be renamed,
//! gets a stamp instead), so a piece that is there is complete, an interrupted
//! run leaves nothing half done, and a run that finds all pieces costs nothing.
//! Deleting `.deps/` is always safe.

mod mujoco;
mod python;
mod suite;
mod wheel;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use once_cell::sync::OnceCell;
use pico_args::Arguments;

pub(crate) use self::mujoco::Mujoco;
use self::python::Python;
use crate::in_order::in_order;
use crate::releases::{self, Release};
use crate::step::step;
use crate::workspace::Workspace;

/// Downloads at a time. pip spends most of its time waiting and starting.
const DOWNLOADS: usize = 4;

/// Gets the pieces when they are asked for.
pub(crate) struct Deps<'a> {
    workspace: &'a Workspace,
    python: OnceCell<Python>,
    suite: OnceCell<PathBuf>,
    /// The list of releases, in its order.
    mujoco: Vec<(Release, OnceCell<Mujoco>)>,
}

impl<'a> Deps<'a> {
    /// Reads the list of releases; gets nothing yet.
    pub(crate) fn new(workspace: &'a Workspace) -> Result<Self> {
        Ok(Self {
            workspace,
            python: OnceCell::new(),
            suite: OnceCell::new(),
            mujoco: releases::read(workspace)?
                .into_iter()
                .map(|release| (release, OnceCell::new()))
                .collect(),
        })
    }

    /// The list of releases, oldest first.
    pub(crate) fn releases(&self) -> impl Iterator<Item = &Release> {
        self.mujoco.iter().map(|(release, _)| release)
    }

    /// The interpreter of the virtual environment.
    pub(crate) fn python(&self) -> Result<&Path> {
        Ok(self.environment()?.interpreter())
    }

    /// The folder of the dm_control suite's models.
    pub(crate) fn suite(&self) -> Result<&Path> {
        let folder = self
            .suite
            .get_or_try_init(|| suite::get(self.workspace, || self.environment()))?;
        Ok(folder)
    }

    /// Headers and library of a release on the list.
    pub(crate) fn mujoco(&self, version: &str) -> Result<&Mujoco> {
        let (release, cell) = self
            .mujoco
            .iter()
            .find(|(release, _)| release.version == version)
            .with_context(|| format!("MuJoCo {version} is not in tests/mujoco-releases.txt"))?;
        cell.get_or_try_init(|| {
            mujoco::get(self.workspace, &release.version, || self.environment())
        })
    }

    /// The release that examples, demo and benchmark use: the last of the list.
    pub(crate) fn newest_mujoco(&self) -> Result<&Mujoco> {
        let (release, _) = self.mujoco.last().context("no MuJoCo release is listed")?;
        self.mujoco(&release.version)
    }

    /// Gets several releases, a few at a time.
    pub(crate) fn get_mujoco(&self, releases: &[Release]) -> Result<()> {
        let mut first_error = Ok(());
        in_order(
            releases,
            DOWNLOADS,
            |release| self.mujoco(&release.version).map(|_| ()),
            |result| {
                if first_error.is_ok() {
                    first_error = result;
                }
            },
        );
        first_error
    }

    /// Gets everything.
    pub(crate) fn get_all(&self) -> Result<()> {
        self.python()?;
        self.suite()?;
        self.get_mujoco(&self.releases().cloned().collect::<Vec<_>>())
    }

    fn environment(&self) -> Result<&Python> {
        self.python.get_or_try_init(|| python::get(self.workspace))
    }
}

/// The verb `deps`.
pub(crate) fn main(workspace: &Workspace, arguments: Arguments) -> Result<()> {
    crate::no_more(arguments)?;
    step("get what comes from outside", || {
        Deps::new(workspace)?.get_all()
    })
}
