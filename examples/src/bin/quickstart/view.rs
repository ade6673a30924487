//! Shows a run on a terminal, or as plain text where there is none.

use std::collections::HashMap;
use std::env;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use dreb_client::protocol::content::joined_text;
use dreb_client::protocol::event::{ToolExecutionEnd, ToolExecutionStart};
use dreb_client::protocol::{AgentMessage, AssistantMessageEvent, Event, Usage};

/// Lines of a tool's output that are shown.
const OUTPUT_LINES: usize = 16;
/// Lines of a diff that are shown.
const DIFF_LINES: usize = 60;
/// Characters of a line that are shown.
const LINE_LENGTH: usize = 160;
/// Arguments that say best what a tool call is about, the best first.
const KEY_ARGUMENTS: [&str; 3] = ["command", "pattern", "path"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    Plain,
    Bold,
    Dim,
    Good,
    Bad,
}

impl Style {
    /// The escape sequence that begins it.
    fn sequence(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Bold => "\x1b[1m",
            Self::Dim => "\x1b[2m",
            Self::Good => "\x1b[32m",
            Self::Bad => "\x1b[31m",
        }
    }
}

/// Writes what happens to `out`.
#[derive(Debug)]
pub(crate) struct View<W> {
    out: W,
    has_color: bool,
    /// Whether the line that is being written has text.
    in_line: bool,
    /// The call whose headline was written last.
    headed: String,
    /// Headlines of the calls that run, by id.
    running: HashMap<String, String>,
}

impl View<io::Stdout> {
    /// Writes to standard output; with colour if that is a terminal and `NO_COLOR` is not set.
    pub(crate) fn of_stdout() -> Self {
        let out = io::stdout();
        let has_color = out.is_terminal() && env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self::new(out, has_color)
    }
}

impl<W: Write> View<W> {
    fn new(out: W, has_color: bool) -> Self {
        Self { out, has_color, in_line: false, headed: String::new(), running: HashMap::new() }
    }

    /// Writes a line of its own.
    pub(crate) fn line(&mut self, style: Style, text: impl Display) -> io::Result<()> {
        self.end_line()?;
        self.write(style, &text.to_string())?;
        self.in_line = true;
        self.end_line()
    }

    /// Leaves a line empty.
    pub(crate) fn gap(&mut self) -> io::Result<()> {
        self.line(Style::Plain, "")
    }

    /// Shows an event; most kinds have nothing to show.
    pub(crate) fn event(&mut self, event: &Event) -> io::Result<()> {
        match event {
            Event::MessageUpdate(update) => self.update(&update.assistant_message_event),
            Event::MessageEnd(end) => match &end.message {
                AgentMessage::Assistant(answer) => match &answer.error_message {
                    Some(error) => self.line(Style::Bad, error),
                    None => Ok(()),
                },
                _ => Ok(()),
            },
            Event::ToolExecutionStart(start) => self.tool_start(start),
            Event::ToolExecutionEnd(end) => self.tool_end(end),
            Event::StreamRetry(retry) => self.line(Style::Dim, format_args!("Once more: {}", retry.error)),
            Event::LengthRetry(_) => self.line(Style::Dim, "Once more: the answer was cut off"),
            Event::AutoRetryStart(retry) => self.line(Style::Dim, format_args!("Once more in {} ms", retry.delay_ms)),
            Event::ExtensionError(error) => self.line(Style::Bad, &error.error),
            _ => Ok(()),
        }
    }

    /// Shows what a run took.
    pub(crate) fn usage(&mut self, answers: usize, usage: &Usage) -> io::Result<()> {
        let input = usage.input + usage.cache_read + usage.cache_write;
        let (output, dollars) = (usage.output, usage.cost.total.0);
        self.line(
            Style::Dim,
            format_args!(
                "{answers} answers, {input} tokens in ({} cached), {output} out, ${dollars:.4}",
                usage.cache_read
            ),
        )
    }

    fn update(&mut self, update: &AssistantMessageEvent) -> io::Result<()> {
        match update {
            AssistantMessageEvent::TextStart(_) | AssistantMessageEvent::ThinkingStart(_) => self.gap(),
            AssistantMessageEvent::TextDelta(delta) => self.write(Style::Plain, &delta.delta),
            AssistantMessageEvent::ThinkingDelta(delta) => self.write(Style::Dim, &delta.delta),
            AssistantMessageEvent::TextEnd(_) | AssistantMessageEvent::ThinkingEnd(_) => self.end_line(),
            _ => Ok(()),
        }
    }

    fn tool_start(&mut self, start: &ToolExecutionStart) -> io::Result<()> {
        let key = KEY_ARGUMENTS.iter().find_map(|name| start.args.get(*name)?.as_str()).unwrap_or_default();
        let headline = clip(&format!("{} {key}", start.tool_name).replace('\n', " "));
        self.headline(&start.tool_call_id, &headline)?;
        self.running.insert(start.tool_call_id.clone(), headline);
        Ok(())
    }

    fn headline(&mut self, id: &str, text: &str) -> io::Result<()> {
        id.clone_into(&mut self.headed);
        self.gap()?;
        self.line(Style::Bold, format_args!("> {text}"))
    }

    fn tool_end(&mut self, end: &ToolExecutionEnd) -> io::Result<()> {
        let headline = self.running.remove(&end.tool_call_id).unwrap_or_else(|| end.tool_name.clone());
        // Tools may run side by side; the output must not stand below another one's headline.
        if self.headed != end.tool_call_id {
            self.headline(&end.tool_call_id, &headline)?;
        }
        let details = end.result.details.as_ref();
        if let Some(diff) = details.and_then(|details| details.get("diff")?.as_str()) {
            return self.excerpt(diff, DIFF_LINES, |line| match line.as_bytes().first() {
                Some(b'+') => Style::Good,
                Some(b'-') => Style::Bad,
                _ => Style::Dim,
            });
        }
        let style = if end.is_error { Style::Bad } else { Style::Dim };
        self.excerpt(joined_text(&end.result.content, "\n").trim_end(), OUTPUT_LINES, |_| style)
    }

    /// Writes the first lines of a text, indented.
    fn excerpt(&mut self, text: &str, limit: usize, style: impl Fn(&str) -> Style) -> io::Result<()> {
        for line in text.lines().take(limit) {
            self.line(style(line), format!("  {}", clip(line)).trim_end())?;
        }
        match text.lines().count().saturating_sub(limit) {
            0 => Ok(()),
            rest => self.line(Style::Dim, format_args!("  ... {rest} more lines")),
        }
    }

    fn write(&mut self, style: Style, text: &str) -> io::Result<()> {
        // What models and tools write must not steer the terminal.
        let text: String = text.chars().filter(|char| !char.is_control() || matches!(char, '\n' | '\t')).collect();
        let Some(last) = text.chars().next_back() else { return Ok(()) };
        self.in_line = last != '\n';
        if self.has_color && style != Style::Plain {
            write!(self.out, "{}{text}\x1b[0m", style.sequence())?;
        } else {
            self.out.write_all(text.as_bytes())?;
        }
        self.out.flush()
    }

    /// Ends the line if it has text.
    pub(crate) fn end_line(&mut self) -> io::Result<()> {
        if self.in_line {
            self.in_line = false;
            writeln!(self.out)?;
        }
        Ok(())
    }
}

fn clip(line: &str) -> String {
    match line.char_indices().nth(LINE_LENGTH) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use pretty_assertions::assert_eq;

    use super::*;

    fn shown(has_color: bool, events: &[&str]) -> String {
        let mut view = View::new(Vec::new(), has_color);
        for event in events {
            view.event(&Event::from_json(event).unwrap()).unwrap();
        }
        String::from_utf8(view.out).unwrap()
    }

    fn text(kind: &str, field: &str) -> String {
        format!(
            r#"{{"type":"message_update","assistantMessageEvent":{{"type":"{kind}","contentIndex":0,"{field}":"hi\u001b[2J"}}}}"#
        )
    }

    const START: &str =
        r#"{"type":"tool_execution_start","toolCallId":"ID","toolName":"bash","args":{"path":"p","command":"a\nb"}}"#;
    const END: &str = r#"{"type":"tool_execution_end","toolCallId":"ID","toolName":"bash","isError":true,
        "result":{"content":[{"type":"text","text":"one\n\ntwo\n"}]}}"#;

    #[test]
    fn text_streams_without_control_characters_and_tools_start_a_new_line() {
        let (start, delta) = (text("text_start", "x"), text("text_delta", "delta"));
        assert_eq!(shown(false, &[&start, &delta, &delta, START, END]), "\nhi[2Jhi[2J\n\n> bash a b\n  one\n\n  two\n");
        let thinking = text("thinking_delta", "delta");
        assert_eq!(
            shown(true, &[&thinking, END]),
            "\x1b[2mhi[2J\x1b[0m\n\n\x1b[1m> bash\x1b[0m\n\x1b[31m  one\x1b[0m\n\n\x1b[31m  two\x1b[0m\n"
        );
    }

    #[test]
    fn output_stands_below_the_headline_of_its_own_call() {
        let with_id = |event: &str, id: &str| event.replace("ID", id);
        let [a, b, end_a, end_b] = [with_id(START, "1"), with_id(START, "2"), with_id(END, "1"), with_id(END, "2")];
        let call = "> bash a b\n  one\n\n  two\n";
        assert_eq!(shown(false, &[&a, &b, &end_b, &end_a]), format!("\n> bash a b\n\n{call}\n{call}"));
    }

    #[test]
    fn long_output_is_cut_and_diffs_are_coloured_by_their_signs() {
        let many = END.replace(r"one\n\ntwo\n", &r"x\n".repeat(OUTPUT_LINES + 3));
        assert!(shown(false, &[&many]).ends_with("  x\n  ... 3 more lines\n"));
        let diff = r#"{"type":"tool_execution_end","toolCallId":"1","toolName":"edit","isError":false,
            "result":{"content":[],"details":{"diff":" 1 a\n-2 b\n+2 c"}}}"#;
        assert_eq!(
            shown(true, &[diff]),
            "\n\x1b[1m> edit\x1b[0m\n\x1b[2m   1 a\x1b[0m\n\x1b[31m  -2 b\x1b[0m\n\x1b[32m  +2 c\x1b[0m\n"
        );
        assert_eq!(clip(&"é".repeat(LINE_LENGTH + 1)), format!("{}...", "é".repeat(LINE_LENGTH)));
    }
}
