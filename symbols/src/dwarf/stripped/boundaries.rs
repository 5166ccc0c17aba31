//! Finds the start of functions by the unwind tables, which `strip` does not remove.

use std::collections::HashMap;

use gimli::{
    BaseAddresses, CieOrFde, EhFrame, EhFrameHdr, EhFrameOffset, FrameDescriptionEntry,
    LittleEndian, UnwindSection,
};

use super::super::image::Image;
use super::super::residency::Residency;
use super::super::units::Slice;
use super::super::unpacking::Content;

/// Returns the start of the function around each address that an unwind table covers. `wanted` is
/// sorted.
pub fn starts(image: &Image, wanted: &[u64], residency: &Residency) -> HashMap<u64, u64> {
    if wanted.is_empty() {
        return HashMap::new();
    }
    let found = Tables::of(image).and_then(|tables| {
        tables
            .by_index(wanted, residency)
            .or_else(|| tables.by_scan(wanted, residency))
    });
    found.unwrap_or_default()
}

/// The unwind tables of a file.
struct Tables<'a> {
    /// `.eh_frame`.
    entries: Content<'a>,
    /// `.eh_frame_hdr`; `None` if missing.
    index: Option<Content<'a>>,
    bases: BaseAddresses,
}

impl<'a> Tables<'a> {
    fn of(image: &'a Image) -> Option<Self> {
        let entries = image.section(".eh_frame")?;
        let index = image.section(".eh_frame_hdr");
        let address = |name| image.section(name).map_or(0, |section| section.address);
        let bases = BaseAddresses::default()
            .set_eh_frame(entries.address)
            .set_eh_frame_hdr(address(".eh_frame_hdr"))
            .set_text(address(".text"))
            .set_got(address(".got"));
        Some(Self {
            entries: image.data(entries)?,
            index: index.and_then(|section| image.data(section)),
            bases,
        })
    }

    fn section(&self) -> EhFrame<Slice<'_>> {
        EhFrame::new(&self.entries, LittleEndian)
    }

    /// Looks each address up in the index. Returns `None` if there is no index.
    fn by_index(&self, wanted: &[u64], residency: &Residency) -> Option<HashMap<u64, u64>> {
        let header = EhFrameHdr::new(self.index.as_deref()?, LittleEndian);
        let header = header.parse(&self.bases, 8).ok()?;
        let index = header.table()?;
        let section = self.section();
        let mut found = HashMap::new();
        for &address in wanted {
            residency.count_jump();
            let entry = index.lookup(address, &self.bases).ok();
            let offset = entry.and_then(|entry| index.pointer_to_offset(entry).ok());
            let entry = offset.and_then(|offset| self.entry(&section, offset));
            if let Some(entry) = entry.filter(|entry| entry.contains(address)) {
                found.insert(address, entry.initial_address());
            }
        }
        Some(found)
    }

    /// Parses the FDE at this offset.
    fn entry<'e>(
        &self,
        section: &EhFrame<Slice<'e>>,
        offset: EhFrameOffset,
    ) -> Option<FrameDescriptionEntry<Slice<'e>>> {
        let description = |section: &EhFrame<_>, bases: &_, offset| {
            EhFrame::cie_from_offset(section, bases, offset)
        };
        section
            .fde_from_offset(&self.bases, offset, description)
            .ok()
    }

    /// Reads all entries, up to the first damaged one.
    fn by_scan(&self, wanted: &[u64], residency: &Residency) -> Option<HashMap<u64, u64>> {
        let mut found: HashMap<u64, u64> = HashMap::new();
        let section = self.section();
        let mut entries = section.entries(&self.bases);
        while let Ok(Some(entry)) = entries.next() {
            residency.count_item();
            let CieOrFde::Fde(entry) = entry else {
                continue;
            };
            let Ok(entry) = entry.parse(EhFrame::cie_from_offset) else {
                continue;
            };
            let start = entry.initial_address();
            let first = wanted.partition_point(|&address| address < start);
            let inside = wanted[first..].iter().take_while(|&&a| entry.contains(a));
            for &address in inside {
                let known = found.entry(address).or_default();
                *known = start.max(*known);
            }
        }
        Some(found)
    }
}
