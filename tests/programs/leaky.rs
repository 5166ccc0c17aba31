//! Keeps boxes and strings in known functions, one of them through an inlined helper.
use std::io::{BufRead, stdin};

struct Keeper {
    boxes: Vec<Box<[u8; 320]>>,
    strings: Vec<String>,
}

#[inline(always)]
fn inlined_helper(text: &str) -> String {
    text.repeat(10)
}

impl Keeper {
    #[inline(never)]
    fn keep_boxes(&mut self, count: usize) {
        self.boxes.extend((0..count).map(|i| Box::new([i as u8; 320])));
    }

    #[inline(never)]
    fn keep_strings(&mut self, count: usize) {
        for _ in 0..count {
            self.strings.push(inlined_helper("twenty-five characters..."));
        }
    }
}

fn main() {
    let mut keeper = Keeper { boxes: Vec::with_capacity(1 << 20), strings: Vec::with_capacity(1 << 20) };
    println!("ready");
    for line in stdin().lock().lines() {
        let count = line.expect("a line").parse().expect("a number");
        std::thread::scope(|scope| {
            scope.spawn(|| keeper.keep_boxes(count));
        });
        keeper.keep_strings(count);
        println!("done");
    }
    println!("{} {}", keeper.boxes.len(), keeper.strings.len());
}
