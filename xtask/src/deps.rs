//! What comes from outside, all of it in `.deps/` and all of it from PyPI by pip:
//!
//! ```text
//! .deps/venv/tools/                  a virtual environment: pip, linters, builds of wheels
//! .deps/venv/mujoco-3.0.0/           one with the release's Python package, and pytest
//! .deps/mujoco/3.0.0/include/mujoco/ the release's headers
//! .deps/mujoco/3.0.0/lib/            its libmujoco.so.3.0.0
//! .deps/dm_control/suite/            the models of the dm_control suite
//! ```
//!
//! Every piece is got when something first asks for it, once per run. It is
//! made under another name and renamed (an environment, which cannot be renamed,
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
pub(crate) use self::python::Python;
use crate::in_order::in_order;
use crate::releases::{self, Release};
use crate::step::step;
use crate::workspace::Workspace;

/// Downloads at a time. pip spends most of its time waiting and starting.
const DOWNLOADS: usize = 4;

/// Gets the pieces when they are asked for.
pub(crate) struct Deps<'a> {
    workspace: &'a Workspace,
    tools: OnceCell<Python>,
    suite: OnceCell<PathBuf>,
    /// The list of releases, in its order.
    mujoco: Vec<Pieces>,
}

/// What there is of a release.
struct Pieces {
    release: Release,
    /// Its headers and library.
    library: OnceCell<Mujoco>,
    /// The environment with its Python package.
    python: OnceCell<Python>,
}

impl<'a> Deps<'a> {
    /// Reads the list of releases; gets nothing yet.
    pub(crate) fn new(workspace: &'a Workspace) -> Result<Self> {
        Ok(Self {
            workspace,
            tools: OnceCell::new(),
            suite: OnceCell::new(),
            mujoco: releases::read(workspace)?
                .into_iter()
                .map(|release| Pieces {
                    release,
                    library: OnceCell::new(),
                    python: OnceCell::new(),
                })
                .collect(),
        })
    }

    /// The list of releases, oldest first.
    pub(crate) fn releases(&self) -> impl Iterator<Item = &Release> {
        self.mujoco.iter().map(|pieces| &pieces.release)
    }

    /// The environment of the tools.
    pub(crate) fn tools(&self) -> Result<&Python> {
        self.tools.get_or_try_init(|| python::tools(self.workspace))
    }

    /// The folder of the dm_control suite's models.
    pub(crate) fn suite(&self) -> Result<&Path> {
        let folder = self
            .suite
            .get_or_try_init(|| suite::get(self.workspace, || self.tools()))?;
        Ok(folder)
    }

    /// Headers and library of a release on the list.
    pub(crate) fn mujoco(&self, version: &str) -> Result<&Mujoco> {
        self.pieces(version)?
            .library
            .get_or_try_init(|| mujoco::get(self.workspace, version, || self.tools()))
    }

    /// The environment with the Python package of a release on the list.
    pub(crate) fn python(&self, version: &str) -> Result<&Python> {
        self.pieces(version)?
            .python
            .get_or_try_init(|| python::with_mujoco(self.workspace, version, || self.tools()))
    }

    /// The release that examples, demo and benchmark use: the last of the list.
    fn newest(&self) -> Result<&Release> {
        self.releases()
            .last()
            .context("no MuJoCo release is listed")
    }

    /// Headers and library of the newest release.
    pub(crate) fn newest_mujoco(&self) -> Result<&Mujoco> {
        self.mujoco(&self.newest()?.version)
    }

    /// The environment with the Python package of the newest release.
    pub(crate) fn newest_python(&self) -> Result<&Python> {
        self.python(&self.newest()?.version)
    }

    /// Gets headers and libraries of several releases, a few at a time.
    pub(crate) fn get_mujoco(&self, releases: &[Release]) -> Result<()> {
        self.get_several(releases, |release| self.mujoco(&release.version).map(drop))
    }

    /// Gets the environments of several releases, a few at a time.
    pub(crate) fn get_python(&self, releases: &[Release]) -> Result<()> {
        self.get_several(releases, |release| self.python(&release.version).map(drop))
    }

    /// Gets everything.
    pub(crate) fn get_all(&self) -> Result<()> {
        let releases: Vec<Release> = self.releases().cloned().collect();
        let tested = releases.iter().filter(|release| !release.suites.is_empty());
        self.suite()?;
        self.get_mujoco(&releases)?;
        self.get_python(&tested.cloned().collect::<Vec<_>>())
    }

    fn get_several(
        &self,
        releases: &[Release],
        get: impl Fn(&Release) -> Result<()> + Sync,
    ) -> Result<()> {
        let mut first_error = Ok(());
        in_order(releases, DOWNLOADS, get, |result| {
            if first_error.is_ok() {
                first_error = result;
            }
        });
        first_error
    }

    fn pieces(&self, version: &str) -> Result<&Pieces> {
        self.mujoco
            .iter()
            .find(|pieces| pieces.release.version == version)
            .with_context(|| format!("MuJoCo {version} is not in tests/mujoco-releases.txt"))
    }
}

/// The verb `deps`.
pub(crate) fn main(workspace: &Workspace, arguments: Arguments) -> Result<()> {
    crate::no_more(arguments)?;
    step("get what comes from outside", || {
        Deps::new(workspace)?.get_all()
    })
}
