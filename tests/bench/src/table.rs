//! Tables in Markdown, aligned for a terminal.

/// Rows of cells under a head.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Returns an empty table with this head.
    pub fn new<const N: usize>(head: [&str; N]) -> Self {
        Self {
            rows: vec![head.map(str::to_owned).to_vec()],
        }
    }

    /// Adds a row as long as the head.
    pub fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.rows[0].len(), "{cells:?}");
        self.rows.push(cells);
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let width = |column: usize| {
            let widths = self.rows.iter().map(|row| row[column].chars().count());
            widths.max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.rows[0].len()).map(width).collect();
        for (index, row) in self.rows.iter().enumerate() {
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                match column {
                    0 => write!(f, "| {cell:<width$} |")?,
                    _ => write!(f, " {cell:>width$} |")?,
                }
            }
            writeln!(f)?;
            if index == 0 {
                for (column, width) in widths.iter().enumerate() {
                    match column {
                        0 => write!(f, "|{:-<1$}|", "", width + 2)?,
                        _ => write!(f, "{:-<1$}:|", "", width + 1)?,
                    }
                }
                writeln!(f)?;
            }
        }
        Ok(())
    }
}

/// Returns a ratio, or a dash where there is none.
pub fn ratio(value: Option<f64>) -> String {
    match value {
        Some(value) if value >= 100.0 => format!("{value:.0}"),
        Some(value) if value >= 10.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.3}"),
        None => "–".to_owned(),
    }
}

/// Seconds in a unit that suits them.
pub fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 1e-6 => format!("{:.1} ns", s * 1e9),
        s if s < 1e-3 => format!("{:.2} µs", s * 1e6),
        s if s < 1.0 => format!("{:.2} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(["what", "n"]);
        table.row(vec!["é".into(), "10".into()]);
        assert_eq!(
            table.to_string(),
            "| what |  n |\n|------|---:|\n| é    | 10 |\n"
        );
    }

    #[test]
    fn numbers_have_the_digits_that_matter() {
        assert_eq!(ratio(Some(1.0049)), "1.005");
        assert_eq!(ratio(Some(12.34)), "12.3");
        assert_eq!(ratio(None), "–");
        assert_eq!(duration(1.25e-8), "12.5 ns");
        assert_eq!(duration(0.0042), "4.20 ms");
    }
}
