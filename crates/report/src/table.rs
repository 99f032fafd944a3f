//! Tables, for both kinds of report.

use crate::escape;

/// Rows from which on a table scrolls in a box of limited height.
const LONG: usize = 40;

/// How a cell stands out. Marks carry words too: colour alone says nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tone {
    Good,
    Bad,
    Quiet,
}

/// A cell.
#[derive(Clone, Debug)]
pub enum Cell {
    Text(String),
    Number(String),
    Mark(String, Tone),
}

impl Cell {
    pub fn text(text: impl Into<String>) -> Cell {
        Cell::Text(text.into())
    }

    pub fn number(text: impl Into<String>) -> Cell {
        Cell::Number(text.into())
    }

    pub fn mark(text: impl Into<String>, tone: Tone) -> Cell {
        Cell::Mark(text.into(), tone)
    }

    fn content(&self) -> &str {
        match self {
            Cell::Text(text) | Cell::Number(text) | Cell::Mark(text, _) => text,
        }
    }
}

/// A table under a heading.
#[derive(Clone, Debug)]
pub struct Table {
    pub title: String,
    pub note: String,
    pub head: Vec<&'static str>,
    pub rows: Vec<Vec<Cell>>,
}

impl Table {
    pub fn new(title: &str, note: &str, head: &[&'static str]) -> Self {
        Table {
            title: title.to_string(),
            note: note.to_string(),
            head: head.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Leaves out columns in which no row has anything.
    pub fn drop_empty(&mut self) {
        let empty = |column: usize| {
            !self.rows.is_empty()
                && self.rows.iter().all(|row| row.get(column).is_none_or(|c| c.content() == "–"))
        };
        let kept: Vec<bool> = (0..self.head.len()).map(|column| !empty(column)).collect();
        let mut keep = kept.iter();
        self.head.retain(|_| keep.next().copied().unwrap_or(true));
        for row in &mut self.rows {
            let mut keep = kept.iter();
            row.retain(|_| keep.next().copied().unwrap_or(true));
        }
    }

    /// Whether a column holds numbers: it is aligned to the right then.
    fn numeric(&self, column: usize) -> bool {
        let mut cells = self.rows.iter().filter_map(|r| r.get(column)).peekable();
        cells.peek().is_some() && cells.all(|c| matches!(c, Cell::Number(_)))
    }

    pub fn markdown(&self) -> String {
        let mut out = format!("## {}\n\n", escape::markdown(&self.title));
        if !self.note.is_empty() {
            out.push_str(&format!("{}\n\n", escape::markdown(&self.note)));
        }
        if self.rows.is_empty() {
            out.push_str("None.\n\n");
            return out;
        }
        let row = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        out.push_str(&row(self.head.iter().map(|h| escape::markdown(h)).collect()));
        let rules = (0..self.head.len()).map(|c| if self.numeric(c) { "---:" } else { "---" });
        out.push_str(&row(rules.map(str::to_string).collect()));
        for cells in &self.rows {
            out.push_str(&row(cells.iter().map(|c| escape::markdown(c.content())).collect()));
        }
        out.push('\n');
        out
    }

    pub fn html(&self) -> String {
        let mut out = format!("<section><h2>{}</h2>\n", escape::html(&self.title));
        if !self.note.is_empty() {
            out.push_str(&format!("<p class=\"note\">{}</p>\n", escape::html(&self.note)));
        }
        if self.rows.is_empty() {
            out.push_str("<p>None.</p></section>\n");
            return out;
        }
        // The table scrolls in its own box, so that the page never does sideways; the box can be
        // reached by keyboard.
        let label = escape::html(&self.title);
        // Only a long one has a height of its own.
        let long = if self.rows.len() > LONG { " long" } else { "" };
        out.push_str(&format!(
            "<div class=\"scroll{long}\" tabindex=\"0\" role=\"region\" aria-label=\"{label}\">\
             <table><thead><tr>"
        ));
        for (column, head) in self.head.iter().enumerate() {
            let class = if self.numeric(column) { " class=\"number\"" } else { "" };
            out.push_str(&format!("<th scope=\"col\"{class}>{}</th>", escape::html(head)));
        }
        out.push_str("</tr></thead><tbody>\n");
        for cells in &self.rows {
            out.push_str("<tr>");
            for (column, cell) in cells.iter().enumerate() {
                let content = escape::html(cell.content());
                let class = match cell {
                    Cell::Number(_) => " class=\"number\"",
                    _ => "",
                };
                let inner = match cell {
                    Cell::Mark(_, tone) => {
                        let tone = match tone {
                            Tone::Good => "good",
                            Tone::Bad => "bad",
                            Tone::Quiet => "quiet",
                        };
                        format!("<span class=\"mark {tone}\">{content}</span>")
                    }
                    _ => content,
                };
                match column {
                    0 => out.push_str(&format!("<th scope=\"row\"{class}>{inner}</th>")),
                    _ => out.push_str(&format!("<td{class}>{inner}</td>")),
                }
            }
            out.push_str("</tr>\n");
        }
        out.push_str("</tbody></table></div></section>\n");
        out
    }
}
