//! The protobuf wire format, as far as `profile.proto` uses it.

/// A field of a message.
pub(super) struct Field<'a> {
    pub(super) number: u32,
    pub(super) value: Value<'a>,
}

/// The value of a field.
#[derive(Clone, Copy)]
pub(super) enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    pub(super) fn number(self) -> Option<u64> {
        match self {
            Value::Number(n) => Some(n),
            Value::Bytes(_) => None,
        }
    }

    pub(super) fn signed(self) -> Option<i64> {
        self.number().map(|n| n as i64)
    }

    pub(super) fn bytes(self) -> Option<&'a [u8]> {
        match self {
            Value::Number(_) => None,
            Value::Bytes(b) => Some(b),
        }
    }

    /// Returns an upper bound on the count of numbers in the value.
    pub(super) fn max_numbers(self) -> usize {
        match self {
            Value::Number(_) => 1,
            Value::Bytes(bytes) => bytes.len(),
        }
    }

    /// Appends one number, or a packed list of them.
    pub(super) fn numbers(self, out: &mut Vec<u64>) -> Option<()> {
        match self {
            Value::Number(n) => out.push(n),
            Value::Bytes(mut bytes) => {
                while !bytes.is_empty() {
                    out.push(varint(&mut bytes)?);
                }
            }
        }
        Some(())
    }
}

/// Iterator over the fields of a message. Returns `None` as the last item if the message is
/// malformed.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = Option<Field<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field)
    }
}

impl<'a> Fields<'a> {
    fn field(&mut self) -> Option<Field<'a>> {
        let tag = varint(&mut self.0)?;
        let number = u32::try_from(tag >> 3).ok().filter(|&n| n != 0)?;
        let value = match tag & 7 {
            0 => Value::Number(varint(&mut self.0)?),
            1 => Value::Number(u64::from_le_bytes(self.take(8)?.try_into().ok()?)),
            2 => {
                let length = usize::try_from(varint(&mut self.0)?).ok()?;
                Value::Bytes(self.take(length)?)
            }
            5 => Value::Number(u32::from_le_bytes(self.take(4)?.try_into().ok()?).into()),
            _ => return None,
        };
        Some(Field { number, value })
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }
}

/// A field at the start of a file, which may be cut off.
pub(super) struct PartialField<'a> {
    pub(super) number: u32,
    /// Set for a message or a string, not for a number.
    pub(super) is_bytes: bool,
    /// Part of the message or string that was read.
    pub(super) content: &'a [u8],
    /// Set if the content continues beyond what was read.
    pub(super) is_cut: bool,
}

impl<'a> PartialField<'a> {
    /// Takes the next field. Returns `None` if it is malformed, or if its tag or length is cut off.
    pub(super) fn take(rest: &mut &'a [u8]) -> Option<Self> {
        let mut ahead = *rest;
        let tag = varint(&mut ahead)?;
        let number = u32::try_from(tag >> 3).ok().filter(|&n| n != 0)?;
        let length = match tag & 7 {
            0 => varint(&mut ahead).map(|_| 0)?,
            1 => 8,
            2 => varint(&mut ahead)?,
            5 => 4,
            _ => return None,
        };
        let length = usize::try_from(length).ok()?;
        let (content, after) = ahead.split_at(length.min(ahead.len()));
        *rest = after;
        Some(Self {
            number,
            is_bytes: tag & 7 == 2,
            content,
            is_cut: content.len() < length,
        })
    }
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// Appends a varint.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a number field, unless it has its default value.
pub(crate) fn put_number(out: &mut Vec<u8>, number: u32, value: u64) {
    if value != 0 {
        put_varint(out, u64::from(number) << 3);
        put_varint(out, value);
    }
}

/// Appends a field of bytes.
pub(crate) fn put_bytes(out: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    put_varint(out, (u64::from(number) << 3) | 2);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Appends a packed list of numbers, unless it is empty.
pub(crate) fn put_numbers(out: &mut Vec<u8>, number: u32, values: impl Iterator<Item = u64>) {
    let mut packed = Vec::new();
    values.for_each(|v| put_varint(&mut packed, v));
    if !packed.is_empty() {
        put_bytes(out, number, &packed);
    }
}

/// Appends a field of eight bytes, unless it has its default value.
pub(crate) fn put_fixed(out: &mut Vec<u8>, number: u32, value: u64) {
    if value != 0 {
        put_varint(out, (u64::from(number) << 3) | 1);
        out.extend_from_slice(&value.to_le_bytes());
    }
}
