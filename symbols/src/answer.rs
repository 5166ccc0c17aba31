//! Encoding of a child's answers for a pipe.

use std::borrow::Cow;
use std::io::{self, Read, Write};
use std::rc::Rc;

use foldhash::HashMap;

use super::dwarf::Resolved;
use super::frame::{Frame, Frames, Origin};

/// Result of reading one file.
pub type Answer = Result<Resolved, Failure>;

/// Message of an error in the child. The pipe carries nothing else of the error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Failure(pub String);

/// String table of an answer. Strings that share memory are stored once.
#[derive(Default)]
struct Strings<'a> {
    all: Vec<&'a str>,
    /// Index in `all` by address.
    indices: HashMap<*const u8, u32>,
}

impl<'a> Strings<'a> {
    /// Returns the index of a string; adds it if necessary.
    fn index(&mut self, text: &'a Rc<str>) -> u32 {
        *self.indices.entry(text.as_ptr()).or_insert_with(|| {
            self.all.push(text);
            self.all.len() as u32 - 1
        })
    }
}

/// Writes an answer: its length in bytes (8 bytes), whether it is an error (1 byte), and its
/// contents.
pub fn send(to: &mut impl Write, answer: &Answer) -> io::Result<()> {
    let mut bytes = Vec::new();
    let put_text = |bytes: &mut Vec<u8>, text: &str| {
        bytes.extend((text.len() as u32).to_le_bytes());
        bytes.extend(text.as_bytes());
    };
    match answer {
        Err(Failure(why)) => put_text(&mut bytes, why),
        Ok(Resolved {
            frames: all,
            missing_note,
        }) => {
            put_text(&mut bytes, missing_note.as_deref().unwrap_or_default());
            let mut strings = Strings::default();
            let mut numbers = vec![all.len() as u32];
            for frames in all {
                numbers.push(frames.len() as u32);
                for frame in frames {
                    let name = strings.index(&frame.name);
                    let file = strings.index(&frame.file);
                    let origin = frame.origin as u32;
                    numbers.extend([name, file, frame.line, frame.column, origin]);
                }
            }
            bytes.extend((strings.all.len() as u32).to_le_bytes());
            for text in strings.all {
                put_text(&mut bytes, text);
            }
            bytes.extend(numbers.into_iter().flat_map(u32::to_le_bytes));
        }
    }
    to.write_all(&(bytes.len() as u64).to_le_bytes())?;
    to.write_all(&[u8::from(answer.is_err())])?;
    to.write_all(&bytes)
}

/// Reads an answer. Returns `None` at the end of the pipe, or if the answer is truncated.
pub fn receive(from: &mut impl Read) -> io::Result<Option<Answer>> {
    let mut head = [0; 9];
    let mut bytes = Vec::new();
    let read = from.by_ref().take(9).read_to_end(&mut bytes)?;
    if read < head.len() {
        return Ok(None);
    }
    head.copy_from_slice(&bytes);
    let (length, failed) = head.split_at(8);
    let length = u64::from_le_bytes(length.try_into().unwrap_or_default());
    bytes.clear();
    if from.take(length).read_to_end(&mut bytes)? as u64 != length {
        return Ok(None);
    }
    let mut cursor = Cursor(&bytes);
    if failed != [0] {
        return Ok(cursor.text().map(|text| Err(Failure(text.into_owned()))));
    }
    Ok(cursor.resolved().map(Ok))
}

/// Decoder of an answer's contents. Returns `None` if they are truncated.
struct Cursor<'a>(&'a [u8]);

impl Cursor<'_> {
    fn number(&mut self) -> Option<u32> {
        let (number, rest) = self.0.split_first_chunk::<4>()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*number))
    }

    fn text(&mut self) -> Option<Cow<'_, str>> {
        let length = self.number()? as usize;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(String::from_utf8_lossy(text))
    }

    fn resolved(&mut self) -> Option<Resolved> {
        let missing_note = self.text()?.into_owned();
        Some(Resolved {
            missing_note: (!missing_note.is_empty()).then_some(missing_note),
            frames: self.frames()?,
        })
    }

    fn frames(&mut self) -> Option<Frames> {
        let mut texts: Vec<Rc<str>> = Vec::new();
        for _ in 0..self.number()? {
            texts.push(self.text()?.into());
        }
        let text = |number: u32| texts.get(number as usize).map(Rc::clone);
        let mut all = Vec::new();
        for _ in 0..self.number()? {
            let mut frames = Vec::new();
            for _ in 0..self.number()? {
                frames.push(Frame {
                    name: text(self.number()?)?,
                    file: text(self.number()?)?,
                    line: self.number()?,
                    column: self.number()?,
                    origin: origin(self.number()?),
                });
            }
            all.push(frames);
        }
        Some(all)
    }
}

/// Returns the origin with this discriminant; the default if there is none.
fn origin(number: u32) -> Origin {
    let all = [Origin::Symbol, Origin::Source, Origin::Synthetic];
    let origin = all.into_iter().find(|origin| *origin as u32 == number);
    origin.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_pass_through_a_pipe_unchanged() {
        let frame = Frame {
            name: "f".into(),
            file: "a/b.c".into(),
            line: 7,
            column: 3,
            origin: Origin::Source,
        };
        let synthetic = Frame {
            origin: Origin::Synthetic,
            ..Frame::named("app+0x10".into())
        };
        let answers = [
            Ok(Resolved {
                frames: vec![
                    vec![],
                    vec![frame.clone(), Frame::default()],
                    vec![synthetic],
                ],
                missing_note: Some("a.dwo is missing".into()),
            }),
            Err(Failure("it is no file".into())),
            Ok(Resolved::default()),
        ];
        let (mut from, mut to) = io::pipe().unwrap();
        answers.iter().for_each(|a| send(&mut to, a).unwrap());
        // A truncated answer is ignored.
        to.write_all(&[9, 0, 0, 0, 0, 0, 0, 0, 0, 1]).unwrap();
        drop(to);
        for answer in answers {
            assert_eq!(receive(&mut from).unwrap(), Some(answer));
        }
        assert_eq!(receive(&mut from).unwrap(), None);
    }
}
