//! Finds the scopes that qualify the name of a function.
//!
//! Functions with internal linkage have no linkage name, only an unqualified one such as `run`.
//! Entries do not refer to their parents, so a unit is walked from its start: once for all names,
//! skipping the children of entries with a sibling reference where possible.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use foldhash::HashMap;
use gimli::{AttributeValue, DwTag, Result, UnitOffset, UnitRef};

use super::super::demangle::{Style, demangle};
use super::plan::{SkipPlans, kind};
use super::units::{Die, Slice, Units, each_attribute};
use super::walk::{Entry, Walk};

/// Maximum depth of functions inside functions, as with local classes.
const MAX_FUNCTION_DEPTH: usize = 16;
/// Maximum number of scopes up to the enclosing function.
const MAX_SCOPES: usize = 64;
/// Maximum length of a qualified name, in bytes. A longer one is replaced by the unqualified name.
const MAX_NAME: usize = 8192;

/// Scopes around an entry.
#[derive(Default)]
struct Scope {
    /// Names of the scopes, outermost first, each followed by `::`.
    prefix: String,
    /// Enclosing function, or declaration of the enclosing class; its own scopes qualify the name
    /// further.
    outer: Option<Die>,
}

/// Returns the qualified names of entries.
pub fn names(
    units: &Units,
    wanted: impl IntoIterator<Item = Die>,
) -> Result<HashMap<Die, Rc<str>>> {
    let wanted: BTreeSet<Die> = wanted.into_iter().collect();
    let mut scopes: HashMap<Die, Scope> = HashMap::default();
    let mut pending = wanted.clone();
    for _ in 0..MAX_FUNCTION_DEPTH {
        let mut by_unit: BTreeMap<usize, Vec<UnitOffset>> = BTreeMap::new();
        for die in &pending {
            by_unit.entry(die.unit).or_default().push(die.entry);
        }
        let mut next = BTreeSet::new();
        for (unit, entries) in by_unit {
            find_scopes(units, unit, &entries, &mut scopes)?;
            units.forget_abbreviations(unit);
        }
        for die in pending {
            let scope = scopes.entry(die).or_default();
            let Some(enclosing) = scope.outer.take() else {
                continue;
            };
            let outer = units.name(enclosing)?;
            scope.outer = outer.scoped;
            match outer.scoped {
                Some(die) => drop(next.insert(die)),
                // The other styles leave out template arguments or add parameters.
                None => scope.enclose(&demangle(&outer.text, Style::Templates)),
            }
        }
        next.retain(|die| !scopes.contains_key(die));
        if next.is_empty() {
            break;
        }
        pending = next;
    }
    let named = |die: Die| Ok((die, qualified_name(units, &scopes, die)?));
    wanted.into_iter().map(named).collect()
}

/// Joins the name of an entry with those of its scopes.
fn qualified_name(units: &Units, scopes: &HashMap<Die, Scope>, die: Die) -> Result<Rc<str>> {
    let unqualified = units.name(die)?.text;
    let mut name = unqualified.to_string();
    let mut next = scopes.get(&die);
    // In corrupt input, functions may enclose each other in a cycle.
    for _ in 0..MAX_FUNCTION_DEPTH {
        let Some(scope) = next else { break };
        name.insert_str(0, &scope.prefix);
        if let Some(outer) = scope.outer {
            name = format!("{}::{name}", units.name(outer)?.text);
        }
        if name.len() > MAX_NAME {
            return Ok(unqualified);
        }
        next = scope.outer.and_then(|outer| scopes.get(&outer));
    }
    Ok(name.into())
}

/// Finds the scopes around the entries `wanted` of a unit, which are sorted.
fn find_scopes(
    units: &Units,
    number: usize,
    wanted: &[UnitOffset],
    scopes: &mut HashMap<Die, Scope>,
) -> Result<()> {
    let opened = units.open(number)?;
    let unit = units.unit_ref(number, &opened);
    let mut plans = SkipPlans::new(&opened.abbreviations);
    let mut walk = Walk::new(unit, &units.residency)?;
    let mut ancestors: Vec<Entry> = Vec::new();
    let mut wanted = wanted.iter().copied().peekable();
    while wanted.peek().is_some()
        && let Some(entry) = walk.next(&mut plans, kind::PARENT | kind::FUNCTION, isize::MIN)?
    {
        while ancestors
            .last()
            .is_some_and(|last| last.depth >= entry.depth)
        {
            ancestors.pop();
        }
        // Drops offsets at which no such entry begins.
        while wanted.next_if(|&offset| offset < entry.offset).is_some() {}
        if let Some(offset) = wanted.next_if(|&offset| offset == entry.offset) {
            let die = Die {
                unit: number,
                entry: offset,
            };
            let name = units.name(die)?.text;
            scopes.insert(die, scope_of_entry(units, number, &ancestors, &name)?);
        }
        if !entry.has_kind(kind::PARENT) {
            continue;
        }
        let ahead = walk.next_offset();
        let next = wanted.peek();
        let is_passed =
            |&sibling: &UnitOffset| sibling > ahead && next.is_none_or(|&next| next >= sibling);
        match walk.sibling(&entry).filter(is_passed) {
            Some(sibling) => walk.pass_over(&entry, sibling)?,
            None => ancestors.push(entry),
        }
    }
    Ok(())
}

/// Returns the scope of the entry `name`, whose ancestors are `ancestors`, outermost first.
fn scope_of_entry(units: &Units, number: usize, ancestors: &[Entry], name: &str) -> Result<Scope> {
    let mut scope = Scope::default();
    for (nearest, entry) in ancestors.iter().rev().take(MAX_SCOPES).enumerate() {
        match entry.plan.abbreviation.tag() {
            gimli::DW_TAG_subprogram => {
                scope.outer = Some(Die {
                    unit: number,
                    entry: entry.offset,
                });
                break;
            }
            gimli::DW_TAG_namespace => {
                let names = Description::of(units, number, entry.offset)?;
                let name = names.name.as_deref();
                scope.enclose(name.unwrap_or("(anonymous namespace)"));
            }
            tag if is_type(tag) => {
                let class = Description::of(units, number, entry.offset)?;
                if class.declaration.is_some() && class.name.is_none() {
                    scope.outer = class.declaration;
                    break;
                }
                scope.enclose(&class.display_name(nearest == 0, name));
            }
            _ => {}
        }
    }
    Ok(scope)
}

fn is_type(tag: DwTag) -> bool {
    matches!(
        tag,
        gimli::DW_TAG_class_type
            | gimli::DW_TAG_structure_type
            | gimli::DW_TAG_union_type
            | gimli::DW_TAG_enumeration_type
            | gimli::DW_TAG_interface_type
    )
}

impl Scope {
    /// Adds an enclosing scope.
    fn enclose(&mut self, name: &str) {
        self.prefix.insert_str(0, "::");
        self.prefix.insert_str(0, name);
    }
}

/// Attributes of a namespace or type.
#[derive(Default)]
struct Description<'a> {
    name: Option<std::borrow::Cow<'a, str>>,
    /// Declaration, if this is a definition outside it.
    declaration: Option<Die>,
    line: u64,
    column: u64,
}

impl<'a> Description<'a> {
    fn of(units: &Units<'a>, number: usize, entry: UnitOffset) -> Result<Self> {
        let opened = units.open(number)?;
        let unit: UnitRef<'_, Slice<'a>> = units.unit_ref(number, &opened);
        let mut scope = Self::default();
        let mut declaration: Option<AttributeValue<Slice<'a>>> = None;
        each_attribute(unit, entry, |attribute| {
            match attribute.name() {
                gimli::DW_AT_name => {
                    let text = unit.attr_string(attribute.value()).ok();
                    // A longer name could not be part of a qualified one.
                    let text = text.filter(|text| text.len() <= MAX_NAME);
                    scope.name = text.map(|text| text.to_string_lossy());
                }
                gimli::DW_AT_specification => declaration = Some(attribute.value()),
                gimli::DW_AT_decl_line => scope.line = attribute.udata_value().unwrap_or(0),
                gimli::DW_AT_decl_column => scope.column = attribute.udata_value().unwrap_or(0),
                _ => {}
            }
            true
        })?;
        let declaration = declaration.map(|value| units.resolve_reference(number, value));
        scope.declaration = declaration.transpose()?.flatten();
        Ok(scope)
    }

    /// Returns a type's name. An unnamed type that directly encloses the function `function`
    /// may be a lambda; lambdas are distinguished by line and column, because the numbers in
    /// their linkage names are not in the debug information.
    fn display_name(&self, is_nearest: bool, function: &str) -> String {
        const LAMBDA_FUNCTIONS: [&str; 4] = ["operator()", "_FUN", "<lambda", "~<lambda"];
        let is_lambda = is_nearest
            && LAMBDA_FUNCTIONS
                .iter()
                .any(|prefix| function.starts_with(prefix));
        match (&self.name, self.line, self.column) {
            (Some(name), ..) => name.clone().into_owned(),
            (None, line, 0) if is_lambda => format!("{{lambda at {line}}}"),
            (None, line, column) if is_lambda => {
                format!("{{lambda at {line}:{column}}}")
            }
            _ => "{unnamed}".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests;
