//! The programs in README.md: what a newcomer copies must compile and run.

use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::cc::{Compiler, Language, Unit};
use crate::deps::Deps;
use crate::program;
use crate::workspace::Workspace;

/// An example that takes longer is no example.
const LIMIT: Duration = Duration::from_secs(300);

/// Builds the first C and the first C++ program of README.md against the newest
/// release and runs them from the root of the checkout.
pub(crate) fn run(workspace: &Workspace, deps: &Deps<'_>) -> Result<()> {
    let compiler = Compiler::of_host(workspace)?;
    let mujoco = Some(deps.newest_mujoco()?);
    let languages = [("c", Language::C99), ("cpp", Language::oldest_cxx(mujoco))];
    for (tag, language) in languages {
        let folder = workspace.target("readme").join(tag);
        fs::create_dir_all(&folder)?;
        let source = folder.join(format!("example.{tag}"));
        fs::write(&source, example(workspace, tag, "int main")?)?;
        let unit = Unit {
            compiler: &compiler,
            language,
            source,
            mujoco,
        };
        let binary = folder.join("example");
        unit.link(workspace, &binary)
            .with_context(|| format!("the {language} program of README.md does not compile"))?;
        run_program(workspace, &mut Command::new(&binary), &folder, &language)?;
    }
    Ok(())
}

/// Runs the first Python program of README.md from the root of the checkout.
pub(crate) fn run_python(workspace: &Workspace, interpreter: &Path) -> Result<()> {
    let folder = workspace.target("readme/py");
    let source = folder.join("example.py");
    fs::create_dir_all(&folder)?;
    fs::write(&source, example(workspace, "python", "import rollout")?)?;
    let mut command = Command::new(interpreter);
    run_program(workspace, command.arg(source), &folder, &"Python")
}

fn run_program(
    workspace: &Workspace,
    command: &mut Command,
    logs: &Path,
    language: &dyn fmt::Display,
) -> Result<()> {
    let outcome = program::run(command.current_dir(workspace.root()), logs, LIMIT)?;
    if let Some(why) = outcome.failure() {
        bail!(
            "the {language} program of README.md failed: {why}\n{}{}",
            outcome.stdout,
            outcome.stderr
        );
    }
    println!("ok the {language} program of README.md");
    Ok(())
}

/// The first program in a block of README.md that is tagged so.
fn example(workspace: &Workspace, tag: &str, sign: &str) -> Result<String> {
    let readme = fs::read_to_string(workspace.path("README.md")).context("README.md")?;
    first_program(&readme, tag, sign)
        .with_context(|| format!("README.md has no program in a block tagged `{tag}`"))
}

/// The first fenced block with this tag that has the sign of a whole program.
fn first_program(markdown: &str, tag: &str, sign: &str) -> Option<String> {
    let fence = format!("```{tag}");
    let mut lines = markdown.lines();
    while let Some(line) = lines.next() {
        if line.trim_end() != fence {
            continue;
        }
        let block: String = lines
            .by_ref()
            .take_while(|line| line.trim_end() != "```")
            .flat_map(|line| [line, "\n"])
            .collect();
        if block.contains(sign) {
            return Some(block);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::first_program;

    #[test]
    fn finds_the_block_with_a_main() {
        let markdown =
            "```c\nint x;\n```\n```cpp\nint main() {}\n```\n```c\nint main(void) {\n}\n```\n";
        let c = first_program(markdown, "c", "int main");
        assert_eq!(c.as_deref(), Some("int main(void) {\n}\n"));
        let cpp = first_program(markdown, "cpp", "int main");
        assert_eq!(cpp.as_deref(), Some("int main() {}\n"));
        assert_eq!(first_program(markdown, "rust", "int main"), None);
    }
}
