//! As much C as it takes to read `include/rollout.h`.

use std::collections::BTreeSet;

/// The header without its comments.
fn code() -> String {
    include_str!("../../include/rollout.h")
        .lines()
        .map(|line| line.split("//").next().unwrap().trim_end())
        .filter(|line| !line.is_empty())
        .flat_map(|line| [line, "\n"])
        .collect()
}

fn word(text: &str) -> &str {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    &text[..text.find(|c| !is_word(c)).unwrap_or(text.len())]
}

fn last_word(text: &str) -> &str {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let end = text.rfind(is_word).map_or(0, |end| end + 1);
    &text[text[..end]
        .rfind(|c| !is_word(c))
        .map_or(0, |start| start + 1)..end]
}

/// The functions that it declares.
pub fn functions() -> BTreeSet<String> {
    let code = code();
    let (_, declared) = code.split_once("extern \"C\" {").unwrap();
    let (declared, _) = declared.split_once("#ifdef __cplusplus").unwrap();
    let functions: BTreeSet<_> = declared
        .split(';')
        .filter_map(|declaration| declaration.split_once('('))
        .map(|(before, _)| last_word(before).to_owned())
        .collect();
    assert!(functions.contains("rollout_run"), "{functions:?}");
    functions
}

/// The structs that it defines, with their fields.
pub fn structs() -> Vec<(String, Vec<String>)> {
    let code = code();
    let mut structs = Vec::new();
    for definition in code.split("typedef struct ").skip(1) {
        let name = word(definition);
        let Some(body) = definition[name.len()..].strip_prefix(" {") else {
            // A handle, of which the header tells no more.
            continue;
        };
        let (body, _) = body.split_once('}').unwrap();
        let fields = body
            .split(';')
            .map(str::trim)
            .filter(|line| !line.is_empty());
        let fields = fields.map(|field| match field.split_once("(*") {
            Some((_, pointer)) => word(pointer).to_owned(),
            None => last_word(field.split('[').next().unwrap()).to_owned(),
        });
        structs.push((name.to_owned(), fields.collect()));
    }
    let written = code.matches("} Rollout").count();
    assert_eq!(structs.len(), written, "a struct was not read");
    structs
}

/// The structs and enums that it names, and the types that it makes of them.
pub fn types() -> BTreeSet<String> {
    let code = code();
    let tagged = ["struct ", "enum "]
        .into_iter()
        .flat_map(|tag| code.split(tag).skip(1).map(word));
    let aliases = code.split("} ").skip(1).map(word);
    let pointers = code
        .split("typedef ")
        .skip(1)
        .filter_map(|definition| definition.split(';').next()?.split_once("(*"))
        .filter(|(before, _)| !before.contains('{'))
        .map(|(_, name)| word(name));
    let all = tagged.chain(aliases).chain(pointers);
    all.filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

/// The enumerators and macros that it defines.
pub fn constants() -> BTreeSet<String> {
    let code = code();
    let macros = code
        .lines()
        .filter_map(|line| line.strip_prefix("#define "))
        .filter_map(|line| line.split_once(' '))
        .map(|(name, _)| name);
    let enumerators = code
        .lines()
        .filter_map(|line| line.trim_start().split_once(" = "))
        .map(|(name, _)| name)
        .filter(|name| name.starts_with("ROLLOUT_"));
    macros.chain(enumerators).map(str::to_owned).collect()
}
