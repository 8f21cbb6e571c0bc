//! The programs in README.md: what a newcomer copies must compile and run.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::cc::{Compiler, Language, Unit};
use crate::deps::Deps;
use crate::program;
use crate::workspace::Workspace;

/// An example that takes longer is no example.
const LIMIT: Duration = Duration::from_secs(60);

/// Builds the first C and the first C++ program of README.md against the newest
/// release and runs them from the root of the checkout.
pub(crate) fn run(workspace: &Workspace, deps: &Deps<'_>) -> Result<()> {
    let readme = fs::read_to_string(workspace.path("README.md")).context("README.md")?;
    let compiler = Compiler::of_host(workspace)?;
    let mujoco = Some(deps.newest_mujoco()?);
    let languages = [("c", Language::C99), ("cpp", Language::oldest_cxx(mujoco))];
    for (tag, language) in languages {
        let text = first_program(&readme, tag)
            .with_context(|| format!("README.md has no program in a block tagged `{tag}`"))?;
        let folder = workspace.target("readme").join(tag);
        fs::create_dir_all(&folder)?;
        let source = folder.join(format!("example.{tag}"));
        fs::write(&source, text)?;
        let unit = Unit {
            compiler: &compiler,
            language,
            source,
            mujoco,
        };
        let binary = folder.join("example");
        unit.link(workspace, &binary)
            .with_context(|| format!("the {language} program of README.md does not compile"))?;
        let outcome = program::run(&binary, &[], workspace.root(), &folder, LIMIT)?;
        if let Some(why) = outcome.failure() {
            bail!(
                "the {language} program of README.md failed: {why}\n{}{}",
                outcome.stdout,
                outcome.stderr
            );
        }
        println!("ok the {language} program of README.md");
    }
    Ok(())
}

/// The first fenced block with this tag that has a `main`.
fn first_program(markdown: &str, tag: &str) -> Option<String> {
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
        if block.contains("int main") {
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
        let c = first_program(markdown, "c");
        assert_eq!(c.as_deref(), Some("int main(void) {\n}\n"));
        let cpp = first_program(markdown, "cpp");
        assert_eq!(cpp.as_deref(), Some("int main() {}\n"));
        assert_eq!(first_program(markdown, "rust"), None);
    }
}
