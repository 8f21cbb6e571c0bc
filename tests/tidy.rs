//! Rules about the sources that no compiler checks.
//!
//! Each test names its rule, and on failure the file and line that break it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Exports that cannot fail, and so need no boundary.
const INFALLIBLE: [&str; 6] = [
    "rollout_abi_version",
    "rollout_clock_ns",
    "rollout_default_nthread",
    "rollout_status_name",
    "rollout_version",
    "rollout_worker_id",
];

/// One of our source files.
struct Source {
    path: String,
    text: String,
}

impl Source {
    /// All Rust files of a folder.
    fn all(folder: &str) -> Vec<Self> {
        fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    collect(&path, files);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    files.push(path);
                }
            }
        }
        let mut files = Vec::new();
        collect(&root().join(folder), &mut files);
        files.sort();
        assert!(!files.is_empty(), "no sources in {folder}");
        let sources = files.into_iter().map(|file| Self {
            path: file.strip_prefix(root()).unwrap().display().to_string(),
            text: fs::read_to_string(&file).unwrap(),
        });
        sources.collect()
    }

    /// Lines of code with their numbers: without comments, and without unit tests,
    /// which stand at the end of a file.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let (code, _) = self
            .text
            .split_once("#[cfg(test)]")
            .unwrap_or((&self.text, ""));
        let lines = code.lines().enumerate();
        lines.map(|(i, line)| (i + 1, line.split("//").next().unwrap()))
    }
}

/// Lines of code that name one of the words.
fn naming<'a>(sources: &'a [Source], words: &'a [&'a str]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources {
        for (number, line) in source.code() {
            if words.iter().any(|word| line.contains(word)) {
                found.push(format!("{}:{number}: {}", source.path, line.trim()));
            }
        }
    }
    found
}

/// The root of the repository.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The exported functions: file, name, signature, body.
fn exports(sources: &[Source]) -> Vec<(&str, &str, &str, &str)> {
    let mut exports = Vec::new();
    for source in sources {
        for after in source.text.split("#[unsafe(no_mangle)]").skip(1) {
            // A function at the top of a file ends with the first brace at the
            // margin.
            let (function, _) = after.split_once("\n}\n").unwrap();
            let (signature, body) = function.split_once('{').unwrap();
            let (_, name) = signature.split_once(" fn ").unwrap();
            let (name, _) = name.split_once('(').unwrap();
            exports.push((source.path.as_str(), name, signature, body));
        }
    }
    assert!(exports.len() > INFALLIBLE.len(), "no exports were found");
    exports
}

#[test]
fn exported_functions_go_through_the_boundary() {
    let sources = Source::all("rollout-ffi/src");
    let exports = exports(&sources);
    for (path, name, _, body) in &exports {
        let guarded = body.contains("boundary(");
        if INFALLIBLE.contains(name) {
            assert!(!guarded, "{path}: {name} is listed as infallible");
        } else {
            assert!(guarded, "{path}: {name} does not call `boundary`");
        }
    }
    for name in INFALLIBLE {
        let exported = exports.iter().any(|(_, export, _, _)| *export == name);
        assert!(exported, "{name} is listed here, and is no export");
    }
}

/// What C passes may be anything, so it arrives as a raw pointer or a number.
#[test]
fn exported_functions_take_no_references() {
    let sources = Source::all("rollout-ffi/src");
    for (path, name, signature, _) in exports(&sources) {
        for word in ["&", "Box<", "NonNull", "bool"] {
            assert!(!signature.contains(word), "{path}: {name} takes `{word}`");
        }
        assert!(signature.contains("extern \"C\""), "{path}: {name}");
    }
}

/// A wrong argument is a status, never a panic.
#[test]
fn the_abi_does_not_panic_on_purpose() {
    let words = [".unwrap()", ".expect(", "panic!", "todo!", "unreachable!"];
    let found = naming(&Source::all("rollout-ffi/src"), &words);
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn the_abi_holds_no_lock_and_no_loop_over_steps() {
    let words = [
        "Mutex", "RwLock", "Condvar", "Lock<", ".lane(", ".step(", ".step)(",
    ];
    let found = naming(&Source::all("rollout-ffi/src"), &words);
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn core_names_no_thread_and_no_lock() {
    let words = [
        "std::thread",
        "thread::",
        "Mutex",
        "RwLock",
        "Condvar",
        "Lock<",
        "Atomic",
    ];
    let found = naming(&Source::all("rollout-core/src"), &words);
    assert!(found.is_empty(), "{found:#?}");
}

/// ThreadSanitizer does not see into std's own primitives, nor fences; and a thread of std's
/// cannot end in a forked child if another one was ending at the fork.
#[test]
fn the_pool_waits_with_its_own_primitives_only() {
    let words = [
        "Mutex",
        "Condvar",
        "RwLock",
        "mpsc",
        "Barrier",
        "OnceLock",
        "scope(",
        "fence(",
        "park",
        "thread::Builder",
    ];
    let mut sources = Source::all("rollout-pool/src");
    let models = ["/tests.rs", "/models.rs", "/model.rs"];
    sources.retain(|source| !models.iter().any(|name| source.path.ends_with(name)));
    let found = naming(&sources, &words);
    assert!(found.is_empty(), "{found:#?}");
}

/// Only `sync` names std's atomics, so that loom can replace them.
#[test]
fn the_pool_takes_its_atomics_from_one_module() {
    let sources = Source::all("rollout-pool/src");
    let found = naming(&sources, &["std::sync::atomic", "core::sync::atomic"]);
    assert!(!found.is_empty(), "no atomics were found");
    for line in found {
        assert!(line.starts_with("rollout-pool/src/sync"), "{line}");
    }
}

#[test]
fn the_pool_does_not_know_mujoco() {
    for source in Source::all("rollout-pool/src") {
        for (i, line) in source.text.lines().enumerate() {
            let known = ["mj_", "mju_", "mjModel", "mjData", "mjtNum"]
                .iter()
                .any(|symbol| line.contains(symbol));
            assert!(!known, "{}:{}: {line}", source.path, i + 1);
        }
    }
}

#[test]
fn layers_point_one_way() {
    let allowed: [(&str, &[&str]); 4] = [
        ("rollout-core", &[]),
        ("rollout-pool", &["rollout-core"]),
        ("rollout-ffi", &["rollout-core", "rollout-pool"]),
        (
            "rollout-python",
            &["rollout-core", "rollout-pool", "rollout-ffi"],
        ),
    ];
    for (package, below) in allowed {
        let manifest = fs::read_to_string(root().join(package).join("Cargo.toml")).unwrap();
        let mut section = "";
        for line in manifest.lines() {
            if line.starts_with('[') {
                section = line;
            }
            let ours = line.starts_with("rollout-") && section.ends_with("dependencies]");
            if ours {
                let name = line.split(['.', ' ', '=']).next().unwrap();
                let tests = name == "rollout-tests" && section == "[dev-dependencies]";
                assert!(
                    below.contains(&name) || tests,
                    "{package} depends on {name}"
                );
            }
        }
    }
}

/// Lints are allowed on the item, with a reason.
#[test]
fn lints_are_allowed_one_by_one_and_for_a_reason() {
    let folders = [
        "rollout-core",
        "rollout-pool",
        "rollout-ffi",
        "rollout-python",
        "tests",
        "xtask",
    ];
    for source in folders.iter().flat_map(|folder| Source::all(folder)) {
        let mut lines = source.code();
        while let Some((number, line)) = lines.next() {
            let line = line.trim_start();
            assert!(!line.starts_with("#![allow"), "{}:{number}", source.path);
            if line.starts_with("#[allow(") || line.starts_with("#[expect(") {
                let mut attribute = line.to_owned();
                while !attribute.contains(")]") {
                    attribute += lines.next().expect("the end of an attribute").1;
                }
                let why = attribute.contains("reason = ");
                assert!(why, "{}:{number}: no reason: {attribute}", source.path);
            }
        }
    }
}

/// Lists the files that belong to the repository, or says why that cannot be done.
fn repository_files() -> Result<Vec<PathBuf>, String> {
    let listed = Command::new("git")
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .current_dir(root())
        .output()
        .map_err(|error| format!("git: {error}"))?;
    if !listed.status.success() {
        return Err(String::from_utf8_lossy(&listed.stderr).into_owned());
    }
    let names = String::from_utf8(listed.stdout).map_err(|error| error.to_string())?;
    let files = names.split_terminator('\0').map(|name| root().join(name));
    // A file may have been deleted and not yet been staged.
    Ok(files.filter(|file| file.is_file()).collect())
}

/// Whether `text` has `path` as the beginning of an absolute path.
fn has_path(text: &str, path: &str) -> bool {
    text.match_indices(path).any(|(start, _)| {
        let before = text[..start].chars().next_back();
        let after = text[start + path.len()..].chars().next();
        let continues =
            |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | '}' | '>');
        !before.is_some_and(continues) && !after.is_some_and(|c| c.is_ascii_alphanumeric())
    })
}

/// What is built here must build anywhere.
#[test]
fn files_name_no_machine() {
    let files = match repository_files() {
        Ok(files) => files,
        Err(why) => {
            println!("skipped: not a git checkout: {why}");
            return;
        }
    };
    assert!(files.len() > 20, "{files:?}");
    // In parts, because this file is one of them.
    let paths = [["/wo", "rk"], ["/ro", "ot"], ["/ho", "me"]].map(|parts| parts.concat());
    let hosts = [
        ["index.crates", ".io"],
        ["static.crates", ".io"],
        ["pypi", ".org"],
        ["files.pythonhosted", ".org"],
        ["deb.debian", ".org"],
    ]
    .map(|parts| parts.concat());
    let mut found = Vec::new();
    for file in files {
        let bytes = fs::read(&file).unwrap();
        for (i, line) in String::from_utf8_lossy(&bytes).lines().enumerate() {
            let path = paths.iter().any(|path| has_path(line, path));
            if path || hosts.iter().any(|host| line.contains(host.as_str())) {
                let file = file.strip_prefix(root()).unwrap().display();
                found.push(format!("{file}:{}: {line}", i + 1));
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn absolute_paths_are_told_from_parts_of_others() {
    let home = ["/ho", "me"].concat();
    for line in ["X=~/a", "a/~", "https://a.org/~", "~work", "../~/a"] {
        let line = line.replace('~', &home[1..]);
        assert!(!has_path(&line, &home), "{line}");
    }
    for line in ["~", "~/a", "X=~/a", "\"~\"", "(~/a)", "a:~"] {
        let line = line.replace('~', &home);
        assert!(has_path(&line, &home), "{line}");
    }
}
