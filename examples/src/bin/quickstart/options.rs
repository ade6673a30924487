//! The command line.

use dreb_client::protocol::ThinkingLevel;

/// What `--help` prints.
pub(crate) const HELP: &str = "\
Starts an agent, lets it mend a small project and checks the result.

Usage: quickstart [OPTIONS]

Without options a script takes the model's place: no key, no network.

Options:
  --provider NAME   Provider of the model, for example anthropic
  --model PATTERN   Model: an id, provider/id or part of a name
  --thinking LEVEL  off, minimal, low, medium, high or xhigh
  --keep            Keep the project and the session file
  --help            Print this
";

/// What was asked for.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Options {
    pub(crate) provider: Option<String>,
    /// `None` means the script.
    pub(crate) model: Option<String>,
    pub(crate) thinking: Option<ThinkingLevel>,
    pub(crate) keep: bool,
    pub(crate) help: bool,
}

impl Options {
    /// Reads the arguments after the program's name.
    pub(crate) fn parse(args: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let mut options = Self::default();
        let mut args = args.into_iter();
        while let Some(flag) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{flag} needs a value"));
            match flag.as_str() {
                "--provider" => options.provider = Some(value()?),
                "--model" => options.model = Some(value()?),
                "--thinking" => {
                    let word = value()?;
                    let level = ThinkingLevel::from(word.as_str());
                    if !level.is_known() {
                        return Err(format!("{word} is no thinking level; use {}", ThinkingLevel::WORDS.join(", ")));
                    }
                    options.thinking = Some(level);
                }
                "--keep" => options.keep = true,
                "--help" | "-h" => options.help = true,
                _ => return Err(format!("unknown argument {flag}; --help shows the known ones")),
            }
        }
        if options.provider.is_some() && options.model.is_none() {
            return Err("--provider needs --model".to_owned());
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use pretty_assertions::assert_eq;

    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        Options::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn flags_are_read() {
        assert_eq!(parse(""), Ok(Options::default()));
        assert_eq!(
            parse("--provider anthropic --model opus --thinking high --keep"),
            Ok(Options {
                provider: Some("anthropic".to_owned()),
                model: Some("opus".to_owned()),
                thinking: Some(ThinkingLevel::High),
                keep: true,
                help: false,
            })
        );
        assert_eq!(parse("-h").map(|options| options.help), Ok(true));
    }

    #[test]
    fn mistakes_are_named() {
        assert_eq!(parse("--model"), Err("--model needs a value".to_owned()));
        assert_eq!(parse("--provider x"), Err("--provider needs --model".to_owned()));
        assert_eq!(parse("x"), Err("unknown argument x; --help shows the known ones".to_owned()));
        assert_eq!(
            parse("--thinking deep"),
            Err("deep is no thinking level; use off, minimal, low, medium, high, xhigh".to_owned())
        );
    }
}
