//! Parser for frames as `perf script` prints them: `ADDRESS symbol+0xOFFSET (module)`.

use crate::scan::Scan;

/// Stack frame.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct FrameText<'a> {
    /// Name of the function. If perf does not know it: name of the module's file, or the address.
    pub(super) name: &'a [u8],
    /// Set for a kernel frame.
    pub(super) is_kernel: bool,
    /// Set if this cannot be other text that begins with a number: the address has many digits or is
    /// aligned as perf does, or a file is named.
    pub(super) is_certain: bool,
}

/// Number of characters in which perf aligns addresses.
const ALIGNED_WIDTH: usize = 16;

/// Minimum number of digits of an address where a process ID may also occur.
const MIN_ADDRESS_DIGITS: usize = 4;

/// Returns true if a word is an address of at least [`MIN_ADDRESS_DIGITS`] digits.
pub(super) fn is_address(word: &[u8]) -> bool {
    let digits = word.strip_prefix(b"0x").unwrap_or(word);
    (MIN_ADDRESS_DIGITS..=16).contains(&digits.len()) && digits.iter().all(u8::is_ascii_hexdigit)
}

/// Returns true if a line begins with an address and a tab, as simpleperf's frames do.
pub(super) fn begins_with_tabbed_address(line: &[u8]) -> bool {
    let tab = line.iter().position(|&c| c == b'\t');
    tab.is_some_and(|at| is_address(&line[..at]))
}

/// Returns true if a line is an instruction on the way to a sample, as `-F +brstackinsn` prints it:
/// all digits of the address, and a tab. Frames have spaces instead of leading zeros, or a module.
pub(super) fn is_instruction(line: &[u8]) -> bool {
    let Some(line) = line.strip_prefix(b"\t") else {
        return false;
    };
    let address = line.split(|&c| c == b'\t').next().unwrap_or_default();
    let is_whole = address.len() == 16 && address.iter().all(u8::is_ascii_hexdigit);
    is_whole && line.len() > address.len() && module_start(line).is_none()
}

/// Minimum number of digits of an address that follows other fields.
const MIN_LATER_DIGITS: usize = 6;

/// Returns true if a word is an address rather than a name: perf prints no `0x` before it.
pub(super) fn is_later_address(word: &[u8]) -> bool {
    (MIN_LATER_DIGITS..=16).contains(&word.len())
        && word.iter().all(u8::is_ascii_hexdigit)
        && word.iter().any(u8::is_ascii_digit)
}

/// Frame at an unknown place.
const NOWHERE: &[u8] = b"0 [unknown] (";

/// Parses the frame of a sample without a call chain, which may follow other fields: flags of a
/// branch, the address of the data, weights. The frame ends with its module. If no module is printed,
/// the frame is the first or second field; a tracepoint's arguments are not searched.
pub(super) fn parse_after_event(text: &[u8], is_tracepoint: bool) -> Option<FrameText<'_>> {
    let words = || {
        text.split(u8::is_ascii_whitespace)
            .filter(|w| !w.is_empty())
    };
    let offset_of = |word: &[u8]| word.as_ptr().addr() - text.as_ptr().addr();
    let searched = match module_start(text) {
        Some(at) => &text[..at],
        None if is_tracepoint => return None,
        None => {
            let second_end = words().nth(1).map(|w| offset_of(w) + w.len());
            &text[..second_end.unwrap_or(text.len())]
        }
    };
    let before_module = || words().take_while(|word| offset_of(word) < searched.len());
    let last = before_module().filter(|word| is_later_address(word)).last();
    // Code at an unknown place: where a trace begins.
    let last =
        last.or_else(|| before_module().find(|word| text[offset_of(word)..].starts_with(NOWHERE)));
    match last {
        Some(word) => parse(&text[offset_of(word)..]),
        None if text.starts_with(b"0x") => None,
        None => parse(text),
    }
}

/// Parses a frame. Symbol, offset and module may be missing, depending on `-F`. simpleperf prints a
/// tab after the address.
pub(super) fn parse(text: &[u8]) -> Option<FrameText<'_>> {
    let whole = without_instruction(text);
    let indented = whole.len() - whole.trim_ascii_start().len();
    let text = whole.trim_ascii();
    let word = text.split(u8::is_ascii_whitespace).next()?;
    if is_mnemonic(word) {
        return None;
    }
    let mut scan = Scan::new(word);
    let address = scan.hex().filter(|_| scan.rest().is_empty())?;
    let rest = text[word.len()..].trim_ascii();
    if rest.starts_with(b"insn:") {
        return None;
    }
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
    let is_aligned = indented + word.len() > ALIGNED_WIDTH && whole.starts_with(b"\t");
    Some(FrameText {
        name,
        is_kernel: is_kernel_frame(address, module),
        is_certain: word.len() >= MIN_LATER_DIGITS || is_aligned || module_start(rest).is_some(),
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

/// Returns true for mnemonics that are also hexadecimal numbers: `add`, `adc`, `dec`, `fadd`.
/// `-F +disasm` prints them on lines of their own.
fn is_mnemonic(word: &[u8]) -> bool {
    word.len() <= MIN_ADDRESS_DIGITS && word.iter().all(u8::is_ascii_lowercase)
}

/// Returns the offset of the parenthesis before the first module that is a path or in brackets.
fn module_start(text: &[u8]) -> Option<usize> {
    let is_start = |at: usize| {
        let follows_space = at == 0 || text[at - 1].is_ascii_whitespace();
        follows_space && text[at] == b'(' && matches!(text.get(at + 1), Some(b'/' | b'['))
    };
    (0..text.len()).find(|&at| is_start(at))
}

/// Splits `symbol (module)`. The module may contain parentheses: `(/opt/app (deleted))`. Other
/// fields may follow it: the target of a branch (`=> 401020 foo`), branches, registers, an
/// instruction.
fn split_module(text: &[u8]) -> (&[u8], &[u8]) {
    if let Some(start) = module_start(text)
        && let Some(length) = parenthesis_length(&text[start..])
    {
        let module = &text[start + 1..start + length - 1];
        return (text[..start].trim_ascii(), module);
    }
    let text = without_target(text);
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

/// Returns the length of the parenthesised text at the start of `text`.
fn parenthesis_length(text: &[u8]) -> Option<usize> {
    let mut depth = 0;
    let end = text.iter().position(|&c| {
        match c {
            b'(' => depth += 1,
            b')' => depth -= 1,
            _ => {}
        }
        depth == 0
    });
    end.map(|at| at + 1)
}

/// Strips the target of a branch, which is printed after its source: `main => 401020 foo`.
fn without_target(text: &[u8]) -> &[u8] {
    const ARROW: &[u8] = b" => ";
    let at = text.windows(ARROW.len()).position(|window| window == ARROW);
    at.map_or(text, |at| text[..at].trim_ascii_end())
}

/// Strips `+0xOFFSET`, and simpleperf's `[+OFFSET]` after the file of an unknown function.
fn without_offset(symbol: &[u8]) -> &[u8] {
    if let Some(at) = symbol.windows(2).rposition(|w| w == b"[+")
        && symbol.ends_with(b"]")
        && symbol[at + 2..symbol.len() - 1]
            .iter()
            .all(u8::is_ascii_hexdigit)
    {
        return &symbol[..at];
    }
    match symbol.windows(3).rposition(|w| w == b"+0x") {
        Some(at) if symbol[at + 3..].iter().all(u8::is_ascii_hexdigit) => &symbol[..at],
        _ => symbol,
    }
}

/// Returns true for a kernel frame. The module decides if it names the kernel, since addresses of
/// 32-bit kernels look like those of programs. Otherwise kernel addresses are those in the upper
/// half, except for a page that programs can execute.
fn is_kernel_frame(address: u64, module: &[u8]) -> bool {
    let file = module.rsplit(|&c| c == b'/').next().unwrap_or(module);
    let is_image = [&b"[kernel"[..], b"[guest.kernel", b"vmlinux", b"[vmlinux"]
        .iter()
        .any(|start| file.starts_with(start));
    let is_module = file.ends_with(b".ko") || file.windows(4).any(|w| w == b".ko.");
    let is_loaded = is_loaded_module(module);
    is_image || is_module || is_loaded || address >> 63 == 1 && module != b"[vsyscall]"
}

/// Returns true for a module of the kernel that perf names without its file: `[brcmfmac]`. Areas of
/// processes are in brackets, too.
fn is_loaded_module(module: &[u8]) -> bool {
    const AREAS: [&[u8]; 11] = [
        b"anon",
        b"heap",
        b"jit",
        b"sigpage",
        b"stack",
        b"unknown",
        b"uprobes",
        b"vdso",
        b"vectors",
        b"vsyscall",
        b"vvar",
    ];
    let inner = module.strip_prefix(b"[").and_then(|m| m.strip_suffix(b"]"));
    inner.is_some_and(|name| {
        let is_name = |c: &u8| c.is_ascii_alphanumeric() || *c == b'_';
        name.iter().all(is_name) && !AREAS.iter().any(|area| name.starts_with(area))
    })
}
