//! Names in the comments of heap text that Go writes (`/debug/pprof/heap?debug=1`): after each
//! stack, a line for each function, innermost first:
//! `#`, the address of the call, the function with the offset in it, its file and line.

use std::collections::HashMap;

use crate::profile::{Function, Line};
use crate::scan::Scan;

/// Names read so far.
#[derive(Default)]
pub(crate) struct GoNames {
    pub(crate) functions: Vec<Function>,
    /// Functions of each address, innermost first. If there are several, each is inlined into the
    /// next.
    pub(crate) symbols: Vec<(u64, Vec<Line>)>,
    function_numbers: HashMap<Function, u32>,
    /// For each address, its index in `symbols` and the number of the stack that added it.
    by_address: HashMap<u64, (usize, u64)>,
    /// Number of stacks so far.
    stack: u64,
    /// Lookup address of the outermost frame of the current stack.
    outermost: Option<u64>,
    /// Address in the last comment of the current stack.
    last: Option<u64>,
}

/// Outermost function of a goroutine, which Go leaves out of the comments.
const GOEXIT: &str = "runtime.goexit";

impl GoNames {
    /// Begins the stack whose line is `text`: the following comments belong to it.
    pub(crate) fn begin_stack(&mut self, text: &[u8]) {
        self.end_stack();
        self.stack += 1;
        let word = text.rsplit(u8::is_ascii_whitespace).next();
        let address = word.and_then(|word| Scan::new(word.strip_prefix(b"0x")?).hex());
        // Addresses in heap text are return addresses.
        self.outermost = address.map(|address| address.wrapping_sub(1));
    }

    /// Ends the last stack. Names its outermost frame `runtime.goexit` if Go has left it out.
    pub(crate) fn end_stack(&mut self) {
        let last = self.last.take();
        if let Some(outermost) = self.outermost.take()
            && last.is_some_and(|last| last != outermost)
            && !self.by_address.contains_key(&outermost)
        {
            let function = Function {
                name: GOEXIT.to_owned(),
                ..Function::default()
            };
            self.add(outermost, function, 0);
        }
    }

    /// Reads a comment. Ignores comments that are not about a frame.
    pub(crate) fn read_comment(&mut self, text: &[u8]) {
        if let Some(frame) = parse(text) {
            self.last = Some(frame.address);
            self.add(frame.address, frame.function, frame.line);
        } else if text.starts_with(b"#\t0x") {
            // An address that Go has no name for: the outermost frame need not be `goexit`.
            self.outermost = None;
        }
    }

    fn add(&mut self, address: u64, function: Function, line: u32) {
        let next = self.functions.len() as u32;
        let number = *self
            .function_numbers
            .entry(function.clone())
            .or_insert(next);
        if number == next {
            self.functions.push(function);
        }
        let line = Line {
            function: number,
            line,
            column: 0,
        };
        let new = (self.symbols.len(), self.stack);
        let (index, stack) = *self.by_address.entry(address).or_insert(new);
        if index == self.symbols.len() {
            self.symbols.push((address, vec![line]));
        } else if stack == self.stack {
            // Recursion lists the same function again.
            let lines = &mut self.symbols[index].1;
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
    }
}

/// Frame of a stack in a comment.
struct Frame {
    address: u64,
    function: Function,
    line: u32,
}

/// Parses `#\t0xADDRESS\tFUNCTION+0xOFFSET\tFILE:LINE`.
fn parse(text: &[u8]) -> Option<Frame> {
    let mut fields = text.strip_prefix(b"#\t")?.split(|&c| c == b'\t');
    let mut scan = Scan::new(fields.next()?.strip_prefix(b"0x")?);
    let address = scan.hex().filter(|_| scan.rest().is_empty())?;
    let name = fields.next().filter(|name| !name.is_empty())?;
    let end = name.windows(3).rposition(|part| part == b"+0x")?;
    // Names are padded to a column.
    let place = fields.find(|field| !field.is_empty())?.trim_ascii();
    let colon = place.iter().rposition(|&c| c == b':')?;
    let line = std::str::from_utf8(&place[colon + 1..])
        .ok()?
        .parse()
        .ok()?;
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let function = Function {
        name: text(&name[..end]),
        file: text(&place[..colon]),
        ..Function::default()
    };
    Some(Frame {
        address,
        function,
        line,
    })
}
