//! How a picture that is a document of its own is printed.

/// A picture that is more times as high as it is wide would be illegible on one sheet.
const HIGHEST: f64 = 3.0;

/// The style sheet of a picture of this size on paper: no wider and no higher than the sheet, so
/// that all of it is seen, and not magnified. A very high one continues from sheet to sheet.
pub fn sheet(width: f64, height: f64) -> String {
    let most = match height <= HIGHEST * width {
        true => "100vh",
        false => "none",
    };
    format!(
        "@media print{{svg:root{{width:100%;height:auto;max-width:{width}px;max-height:{most}}}}}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_fits_the_sheet_unless_it_is_very_high() {
        assert!(sheet(2000.0, 900.0).contains("max-width:2000px;max-height:100vh}"));
        assert!(sheet(900.0, 2700.0).contains("max-height:100vh}"));
        assert!(sheet(900.0, 2701.0).contains("max-height:none}"));
    }
}
