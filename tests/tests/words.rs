//! Keeps the language of the sources: parameters and constants say what they are, docs name their
//! subject.
//!
//! The rules are those of CONTRIBUTING.md that a program can check without a doubt. Text that
//! clap prints as help is not checked, because it addresses users.

use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::Span;
use syn::visit::{self, Visit};

/// Crates that are not checked yet.
const EXEMPT: &[&str] = &[];

/// Words that say neither what a constant limits nor in what unit.
const GENERIC: &[&str] = &[
    "A", "ABOUT", "AGAIN", "AND", "ANY", "AS", "AT", "BIG", "CALM", "CLOSE", "EACH", "ENOUGH",
    "EVERY", "FAR", "FEW", "HALF", "IN", "LARGE", "LEAST", "LESS", "LITTLE", "LONG", "LOT", "MANY",
    "MAX", "MIN", "MORE", "MOST", "MUCH", "NEAR", "NO", "OF", "OFTEN", "ONCE", "ONE", "PATIENCE",
    "PAUSE", "RARE", "SEVERAL", "SHORT", "SMALL", "SOME", "SOON", "STALL", "THE", "TOO", "TWICE",
    "TWO", "VERY", "WAIT",
];

/// First words of docs whose subject is elsewhere.
const WITHOUT_SUBJECT: &[&str] = &[
    "As", "How", "It", "Its", "Likewise", "Same", "Such", "That", "The same", "Their", "Them",
    "They", "This one", "Those", "What", "Whatever", "When", "Where", "Whether", "Which", "Who",
    "Whose", "Why",
];

/// A doc comment's line, as written.
struct DocLine {
    line: usize,
    text: String,
}

/// What one file breaks.
#[derive(Default)]
struct Check {
    /// Violations: line and explanation.
    found: Vec<(usize, String)>,
    docs: Vec<DocLine>,
}

impl Check {
    fn report(&mut self, span: Span, explanation: String) {
        self.found.push((span.start().line, explanation));
    }

    fn check_signature(&mut self, signature: &syn::Signature) {
        for input in &signature.inputs {
            let syn::FnArg::Typed(parameter) = input else {
                continue;
            };
            if is_tuple(&parameter.ty) {
                let explanation = format!("`{}` takes a tuple: name its parts", signature.ident);
                self.report(parameter.colon_token.span, explanation);
            }
        }
    }

    fn check_constant(&mut self, name: &syn::Ident) {
        let text = name.to_string();
        let generic = text.split('_').all(|word| GENERIC.contains(&word));
        if generic || text.starts_with("MOST_") {
            let explanation = format!("`{text}` does not say what it limits, or in what unit");
            self.report(name.span(), explanation);
        }
    }

    /// Checks the first line of each doc comment.
    fn check_docs(&mut self) {
        self.docs.sort_by_key(|doc| doc.line);
        let mut previous = None;
        for doc in &self.docs {
            let begins = previous.is_none_or(|line| line + 1 != doc.line);
            previous = Some(doc.line);
            if begins && lacks_subject(&doc.text) {
                let explanation = format!("doc without a subject: {}", doc.text.trim());
                self.found.push((doc.line, explanation));
            }
        }
    }
}

impl<'ast> Visit<'ast> for Check {
    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.check_signature(&function.sig);
        visit::visit_item_fn(self, function);
    }

    fn visit_item_impl(&mut self, block: &'ast syn::ItemImpl) {
        // A trait's methods are as the trait has them, which may be another crate's.
        if block.trait_.is_none() {
            for item in &block.items {
                if let syn::ImplItem::Fn(method) = item {
                    self.check_signature(&method.sig);
                }
            }
        }
        visit::visit_item_impl(self, block);
    }

    fn visit_trait_item_fn(&mut self, method: &'ast syn::TraitItemFn) {
        self.check_signature(&method.sig);
        visit::visit_trait_item_fn(self, method);
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        if !is_help(&item.attrs) {
            visit::visit_item_struct(self, item);
        }
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        if !is_help(&item.attrs) {
            visit::visit_item_enum(self, item);
        }
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.check_constant(&item.ident);
        visit::visit_item_const(self, item);
    }

    fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
        self.check_constant(&item.ident);
        visit::visit_impl_item_const(self, item);
    }

    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        self.check_constant(&item.ident);
        visit::visit_item_static(self, item);
    }

    fn visit_expr_match(&mut self, expression: &'ast syn::ExprMatch) {
        if expression.arms.iter().any(|arm| is_bool(&arm.pat)) {
            self.report(
                expression.match_token.span,
                "`match` on a bool: use `if`".to_owned(),
            );
        }
        visit::visit_expr_match(self, expression);
    }

    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        if let Some(text) = doc_text(attribute) {
            self.docs.push(DocLine {
                line: attribute.pound_token.span.start().line,
                text,
            });
        }
    }
}

/// Returns true for a tuple of two or more, or a reference to one.
fn is_tuple(kind: &syn::Type) -> bool {
    match kind {
        syn::Type::Tuple(tuple) => tuple.elems.len() > 1,
        syn::Type::Reference(reference) => is_tuple(&reference.elem),
        _ => false,
    }
}

fn is_bool(pattern: &syn::Pat) -> bool {
    matches!(pattern, syn::Pat::Lit(literal) if matches!(literal.lit, syn::Lit::Bool(_)))
}

fn doc_text(attribute: &syn::Attribute) -> Option<String> {
    let syn::Meta::NameValue(pair) = &attribute.meta else {
        return None;
    };
    if !pair.path.is_ident("doc") {
        return None;
    }
    let syn::Expr::Lit(literal) = &pair.value else {
        return None;
    };
    let syn::Lit::Str(text) = &literal.lit else {
        return None;
    };
    Some(text.value())
}

/// Returns true if clap prints the item's docs as help.
fn is_help(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let syn::Meta::List(list) = &attribute.meta else {
            return false;
        };
        let derived = list.tokens.to_string();
        list.path.is_ident("derive")
            && ["Args", "Parser", "Subcommand", "ValueEnum"]
                .iter()
                .any(|derive| derived.contains(derive))
    })
}

fn lacks_subject(doc: &str) -> bool {
    let doc = doc.trim_start();
    WITHOUT_SUBJECT.iter().any(|words| {
        let rest = doc.strip_prefix(words);
        rest.is_some_and(|rest| rest.starts_with([' ', ',', ':', ';', '.']) || rest.is_empty())
    })
}

/// Checks one file's text. Returns the line and the explanation of each violation.
fn violations(source: &str) -> Vec<(usize, String)> {
    let file = syn::parse_file(source).expect("Rust");
    let mut check = Check::default();
    check.visit_file(&file);
    check.check_docs();
    check.found.sort();
    check.found
}

/// Appends the Rust files below `directory`.
fn collect_sources(directory: &Path, sources: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("the directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect_sources(&path, sources);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            sources.push(path);
        }
    }
}

/// Returns the directories of the workspace's crates.
fn crates(root: &Path) -> Vec<String> {
    let manifest = fs::read_to_string(root.join("Cargo.toml")).expect("the workspace's manifest");
    let members = manifest
        .lines()
        .find_map(|line| line.strip_prefix("members = ["))
        .expect("the workspace's members");
    let names = members.split('"').skip(1).step_by(2);
    names.map(str::to_owned).collect()
}

#[test]
fn sources_keep_the_language() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the workspace");
    let crates = crates(root);
    for name in EXEMPT {
        assert!(crates.iter().any(|known| known == name), "no crate {name}");
    }
    let mut report = Vec::new();
    for name in crates.iter().filter(|name| !EXEMPT.contains(&&***name)) {
        let mut sources = Vec::new();
        collect_sources(&root.join(name).join("src"), &mut sources);
        sources.sort();
        assert!(!sources.is_empty(), "no sources in {name}");
        for path in sources {
            let source = fs::read_to_string(&path).expect("the source");
            let path = path.strip_prefix(root).expect("a path in the workspace");
            for (line, explanation) in violations(&source) {
                report.push(format!("{}:{line}: {explanation}", path.display()));
            }
        }
    }
    assert!(
        report.is_empty(),
        "{} places:\n{}",
        report.len(),
        report.join("\n")
    );
}

#[test]
fn each_rule_finds_its_violation() {
    let cases = [
        ("fn f((a, b): (u8, u8)) {}", "takes a tuple"),
        (
            "impl S { fn f(&self, pair: &(u8, u8)) {} }",
            "takes a tuple",
        ),
        ("trait T { fn f(pair: (u8, u8)); }", "takes a tuple"),
        (
            "fn f(a: bool) { match a { true => (), false => () } }",
            "`match` on a bool",
        ),
        ("const PATIENCE: u32 = 1;", "does not say"),
        ("static TOO_MANY: u32 = 1;", "does not say"),
        ("const MOST_WAITING: u32 = 1;", "does not say"),
        (
            "/// The same from the other end.\nfn f() {}",
            "doc without a subject",
        ),
        ("//! What samples stand for.", "doc without a subject"),
        (
            "struct S { /// Whether it is set.\n set: bool }",
            "doc without a subject",
        ),
        (
            "enum E { /// They: all of them.\n All }",
            "doc without a subject",
        ),
    ];
    for (source, expected) in cases {
        let found = violations(source);
        assert_eq!(found.len(), 1, "{source}: {found:?}");
        assert!(found[0].1.contains(expected), "{source}: {found:?}");
    }
}

#[test]
fn other_text_is_left_alone() {
    let cases = [
        "impl From<(u8, u8)> for S { fn from(pair: (u8, u8)) -> S { S } }",
        "fn f(pairs: &[(u8, u8)], unit: ()) {}",
        "fn f(a: bool, b: bool) { match (a, b) { (true, _) => (), _ => () } }",
        "const MAX_ENTRIES: u32 = 1; const LONG_NAME: u32 = 1; const RETRY_EVERY: u32 = 1;",
        "/// Returns the sum.\n/// It is zero at first.\nfn f() {}",
        "/// Items are counted once.\nfn f() {}",
        "const TEXT: &str = \"/// What\";",
        "#[derive(Debug, Args)] struct S { /// Whether to print\n print: bool }",
    ];
    for source in cases {
        assert_eq!(violations(source), [], "{source}");
    }
}
