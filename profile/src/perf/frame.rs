//! Parser for frames as `perf script` prints them: `ADDRESS symbol+0xOFFSET (module)`.

use crate::scan::Scan;

/// Stack frame.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct FrameText<'a> {
    /// Name of the function. If perf does not know it: name of the module's file, or the address.
    pub(super) name: &'a [u8],
    /// Set for a kernel frame.
    pub(super) is_kernels: bool,
}

/// Minimum number of digits of an address where a process ID may also occur.
const MIN_ADDRESS_DIGITS: usize = 4;

/// Returns true if a word is an address of at least [`MIN_ADDRESS_DIGITS`] digits.
pub(super) fn is_address(word: &[u8]) -> bool {
    let digits = word.strip_prefix(b"0x").unwrap_or(word);
    (MIN_ADDRESS_DIGITS..=16).contains(&digits.len()) && digits.iter().all(u8::is_ascii_hexdigit)
}

/// Parses a frame. Symbol, offset and module may be missing, depending on `-F`. simpleperf prints a
/// tab after the address.
pub(super) fn parse(text: &[u8]) -> Option<FrameText<'_>> {
    let text = without_instruction(text).trim_ascii();
    let word = text.split(u8::is_ascii_whitespace).next()?;
    let mut scan = Scan::new(word);
    let address = scan.hex().filter(|_| scan.rest().is_empty())?;
    let rest = text[word.len()..].trim_ascii();
    let (symbol, module) = split_module(rest);
    let symbol = without_offset(symbol);
    let is_unknown = symbol.is_empty() || symbol == b"[unknown]";
    let name = if !is_unknown {
        symbol
    } else if !module.is_empty() {
        let path = module.strip_suffix(b" (deleted)").unwrap_or(module);
        path.rsplit(|&c| c == b'/').next().unwrap_or(path)
    } else if !symbol.is_empty() {
        symbol
    } else {
        word
    };
    Some(FrameText {
        name,
        is_kernels: is_kernels(address, module),
    })
}

/// Strips the instruction bytes that `-F +insn` prints after a frame.
fn without_instruction(text: &[u8]) -> &[u8] {
    const INSTRUCTION: &[u8] = b") insn: ";
    let at = text
        .windows(INSTRUCTION.len())
        .rposition(|window| window == INSTRUCTION);
    at.map_or(text, |at| &text[..=at])
}

/// Splits `symbol (module)`. The module may contain parentheses: `(/opt/app (deleted))`.
fn split_module(text: &[u8]) -> (&[u8], &[u8]) {
    if !text.ends_with(b")") {
        return (text, b"");
    }
    let mut depth = 0;
    for (at, &c) in text.iter().enumerate().rev() {
        match c {
            b')' => depth += 1,
            b'(' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            let before = &text[..at];
            // In a bare `operator()(int)`, the parameters are not a module.
            let is_module = before.is_empty() || before.ends_with(b" ");
            return if is_module {
                (before.trim_ascii(), &text[at + 1..text.len() - 1])
            } else {
                (text, b"")
            };
        }
    }
    (text, b"")
}

fn without_offset(symbol: &[u8]) -> &[u8] {
    match symbol.windows(3).rposition(|w| w == b"+0x") {
        Some(at) if symbol[at + 3..].iter().all(u8::is_ascii_hexdigit) => &symbol[..at],
        _ => symbol,
    }
}

/// Returns true for a kernel frame. The module decides if it names the kernel, since addresses of
/// 32-bit kernels look like those of programs. Otherwise kernel addresses are those in the upper
/// half, except for a page that programs can execute.
fn is_kernels(address: u64, module: &[u8]) -> bool {
    let file = module.rsplit(|&c| c == b'/').next().unwrap_or(module);
    let is_image = [&b"[kernel"[..], b"[guest.kernel", b"vmlinux", b"[vmlinux"]
        .iter()
        .any(|start| file.starts_with(start));
    let is_module = file.ends_with(b".ko") || file.windows(4).any(|w| w == b".ko.");
    is_image || is_module || address >> 63 == 1 && module != b"[vsyscall]"
}
