//! Style sheet for printing a standalone picture.

/// Maximum ratio of height to width of a picture that is printed on one sheet. A taller one would
/// be illegible.
const MAX_ASPECT: f64 = 3.0;

/// Returns the style sheet for printing a picture of this size. Shrinks it to fit on a sheet, but
/// does not enlarge it. A very tall picture continues on further sheets.
pub fn sheet(width: f64, height: f64) -> String {
    let max_height = if height <= MAX_ASPECT * width {
        "100vh"
    } else {
        "none"
    };
    format!(
        "@media print{{svg:root{{width:100%;height:auto;max-width:{width}px;max-height:{max_height}}}}}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_fits_the_sheet_unless_it_is_very_tall() {
        assert!(sheet(2000.0, 900.0).contains("max-width:2000px;max-height:100vh}"));
        assert!(sheet(900.0, 2700.0).contains("max-height:100vh}"));
        assert!(sheet(900.0, 2701.0).contains("max-height:none}"));
    }
}
