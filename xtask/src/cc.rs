//! The C and C++ compilers, called as a careful host of the library calls them.

use std::env;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use xshell::{Shell, cmd};

use crate::deps::Mujoco;
use crate::workspace::Workspace;

/// The language that a file is compiled as, whatever its name ends in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Language {
    /// The oldest C that the headers promise to work in.
    C99,
    /// The oldest C++ that the headers promise to work in.
    Cxx11,
    /// The oldest C++ that later MuJoCo releases work in.
    Cxx17,
}

/// Whether this release's own headers need C++17: `mujoco.h` includes `mjspec.h`,
/// which from 3.2.3 on names `std::byte`.
fn needs_cxx17(mujoco: Option<&Mujoco>) -> bool {
    mujoco.is_some_and(|mujoco| mujoco.header("mjspec.h").contains("std::byte"))
}

impl Language {
    /// The oldest C++ that a host can be written in beside this release's headers.
    pub(crate) fn oldest_cxx(mujoco: Option<&Mujoco>) -> Self {
        if needs_cxx17(mujoco) {
            Language::Cxx17
        } else {
            Language::Cxx11
        }
    }

    fn flags(self) -> [&'static str; 3] {
        match self {
            Language::C99 => ["-std=c99", "-x", "c"],
            Language::Cxx11 => ["-std=c++11", "-x", "c++"],
            Language::Cxx17 => ["-std=c++17", "-x", "c++"],
        }
    }

    /// A part of file names that tells the languages apart.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Language::C99 => "c99",
            Language::Cxx11 => "cxx11",
            Language::Cxx17 => "cxx17",
        }
    }
}

impl fmt::Display for Language {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Language::C99 => "C99",
            Language::Cxx11 => "C++11",
            Language::Cxx17 => "C++17",
        })
    }
}

/// A pair of compilers that exists on this machine.
pub(crate) struct Compiler {
    c: String,
    cxx: String,
}

impl Compiler {
    /// What `CC` and `CXX` name, by default `cc` and `c++`.
    pub(crate) fn of_host(workspace: &Workspace) -> Result<Self> {
        let of_env = |name, default: &str| env::var(name).unwrap_or_else(|_| default.to_owned());
        let compiler = Self {
            c: of_env("CC", "cc"),
            cxx: of_env("CXX", "c++"),
        };
        let shell = workspace.shell()?;
        for program in [&compiler.c, &compiler.cxx] {
            if !starts(&shell, program) {
                bail!("the compiler `{program}` does not start: `apt-get install build-essential`");
            }
        }
        Ok(compiler)
    }

    /// clang, where it is installed.
    pub(crate) fn clang(workspace: &Workspace) -> Result<Option<Self>> {
        let compiler = Self {
            c: "clang".to_owned(),
            cxx: "clang++".to_owned(),
        };
        let shell = workspace.shell()?;
        let installed = starts(&shell, &compiler.c) && starts(&shell, &compiler.cxx);
        Ok(installed.then_some(compiler))
    }

    /// The command of the compiler for `language`.
    pub(crate) fn command(&self, language: Language) -> &str {
        match language {
            Language::C99 => &self.c,
            Language::Cxx11 | Language::Cxx17 => &self.cxx,
        }
    }
}

/// `CC` may hold arguments too: `ccache gcc`.
fn words(command: &str) -> (&str, Vec<&str>) {
    let mut words = command.split_whitespace();
    (words.next().unwrap_or_default(), words.collect())
}

fn starts(shell: &Shell, command: &str) -> bool {
    let (program, arguments) = words(command);
    cmd!(shell, "{program} {arguments...} --version")
        .quiet()
        .ignore_status()
        .output()
        .is_ok_and(|output| output.status.success())
}

/// One file to compile, and against what.
pub(crate) struct Unit<'a> {
    /// By what.
    pub(crate) compiler: &'a Compiler,
    /// As what.
    pub(crate) language: Language,
    /// The file.
    pub(crate) source: PathBuf,
    /// The MuJoCo release that it sees, if any.
    pub(crate) mujoco: Option<&'a Mujoco>,
}

impl Unit<'_> {
    /// Compiles to the object file `output`. An error has the compiler's words.
    ///
    /// An object file rather than a syntax check, as some warnings come from the
    /// optimizer only.
    pub(crate) fn compile(&self, workspace: &Workspace, output: &Path) -> Result<()> {
        self.call(workspace, output, &["-c".to_owned()])
    }

    /// Compiles and links to the program `output`, which will find librollout in
    /// the target folder and libmujoco in `.deps/` by itself.
    pub(crate) fn link(&self, workspace: &Workspace, output: &Path) -> Result<()> {
        self.link_to(workspace, workspace.library()?, &[], output)
    }

    /// The same, to the librollout in the folder `library`, and with these flags.
    pub(crate) fn link_to(
        &self,
        workspace: &Workspace,
        library: &Path,
        flags: &[&str],
        output: &Path,
    ) -> Result<()> {
        let library = library.display().to_string();
        let mut arguments: Vec<_> = flags.iter().map(|&flag| flag.to_owned()).collect();
        arguments.extend([
            // The path in the program shall win over LD_LIBRARY_PATH, in which cargo
            // names its own folders, with an unoptimised library in them.
            "-Wl,--disable-new-dtags".to_owned(),
            format!("-L{library}"),
            format!("-Wl,-rpath,{library}"),
            "-lrollout".to_owned(),
        ]);
        if let Some(mujoco) = self.mujoco {
            let folder = mujoco.lib().display().to_string();
            arguments.extend([
                format!("-L{folder}"),
                format!("-Wl,-rpath,{folder}"),
                format!("-l:{}", mujoco.lib_name()),
            ]);
        }
        arguments.extend(["-lm", "-lpthread", "-ldl"].map(str::to_owned));
        self.call(workspace, output, &arguments)
    }

    fn call(&self, workspace: &Workspace, output: &Path, last: &[String]) -> Result<()> {
        let folder = output.parent().context("an output without a folder")?;
        fs::create_dir_all(folder)?;
        let shell = workspace.shell()?;
        let (program, first) = words(self.compiler.command(self.language));
        let flags = self.language.flags();
        // As system headers, MuJoCo's may do what ours may not.
        let isystem = self
            .mujoco
            .map(|mujoco| format!("-isystem{}", mujoco.include().display()));
        // Ours keep to C++11. So that this can be seen beside later releases, the
        // one name that these lack there is supplied.
        let byte = (self.language == Language::Cxx11 && needs_cxx17(self.mujoco))
            .then_some(["-include", "tests/c/std_byte.h"])
            .into_iter()
            .flatten();
        let source = &self.source;
        let result = cmd!(
            shell,
            "{program} {first...} -Wall -Wextra -Wpedantic -Werror -O2 -g -I include {isystem...}
             {flags...} {byte...} {source} -o {output} {last...}"
        )
        .quiet()
        .ignore_status()
        .output()?;
        if !result.status.success() {
            bail!("{}", String::from_utf8_lossy(&result.stderr).trim_end());
        }
        Ok(())
    }
}
