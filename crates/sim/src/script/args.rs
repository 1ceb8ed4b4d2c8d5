//! The words of one command: names, `key=value`, and the units in them.

use std::collections::BTreeMap;
use tollgate_core::curve::Rate;
use tollgate_core::limit::CellKey;
use tollgate_core::units::{Amount, Share, Span};

/// One command, taken apart. Every word must be asked for: [`Args::finish`] complains about the rest.
#[derive(Clone, Debug)]
pub struct Args {
    /// The command.
    pub name: String,
    words: Vec<String>,
    pairs: BTreeMap<String, String>,
}

impl Args {
    /// Takes a line apart.
    ///
    /// # Errors
    /// A text that says what is wrong.
    pub fn parse(line: &str) -> Result<Args, String> {
        let mut args = Args { name: String::new(), words: Vec::new(), pairs: BTreeMap::new() };
        for word in line.split_whitespace() {
            if args.name.is_empty() {
                args.name = word.to_string();
            } else if let Some((key, value)) = word.split_once('=') {
                if args.pairs.insert(key.to_string(), value.to_string()).is_some() {
                    return Err(format!("{key} is given twice"));
                }
            } else {
                args.words.push(word.to_string());
            }
        }
        args.words.reverse();
        Ok(args)
    }

    /// The next word, if any.
    pub fn optional(&mut self) -> Option<String> {
        self.words.pop()
    }

    /// The next word.
    ///
    /// # Errors
    /// When there is none.
    pub fn word(&mut self, what: &str) -> Result<String, String> {
        self.optional().ok_or_else(|| format!("{}: {what} is missing", self.name))
    }

    /// Whether the flag `word` is there.
    pub fn flag(&mut self, word: &str) -> bool {
        let found = self.words.iter().position(|other| other == word);
        found.map(|index| self.words.remove(index)).is_some()
    }

    /// The value of `key`, read by `read`.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn get<T>(&mut self, key: &str, read: impl Fn(&str) -> Option<T>) -> Result<Option<T>, String> {
        let Some(text) = self.pairs.remove(key) else { return Ok(None) };
        read(&text).map(Some).ok_or_else(|| format!("{key}={text} can't be read"))
    }

    /// The value of `key`, or `default`.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn get_or<T>(
        &mut self,
        key: &str,
        read: impl Fn(&str) -> Option<T>,
        default: T,
    ) -> Result<T, String> {
        Ok(self.get(key, read)?.unwrap_or(default))
    }

    /// All pairs that nobody has asked for yet.
    pub fn rest(&mut self) -> BTreeMap<String, String> {
        std::mem::take(&mut self.pairs)
    }

    /// Complains about words that nobody asked for.
    ///
    /// # Errors
    /// When there is one.
    pub fn finish(self) -> Result<(), String> {
        let left = self.words.last().or_else(|| self.pairs.keys().next());
        left.map_or(Ok(()), |word| Err(format!("{}: what is {word}?", self.name)))
    }
}

/// A whole number.
pub fn number(text: &str) -> Option<u64> {
    text.parse().ok()
}

/// `1.25` in units of `1/unit`; `None` for more digits than that.
pub fn decimal(text: &str, unit: u64) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let mut value: u64 = whole.parse::<u64>().ok()?.checked_mul(unit)?;
    let mut digit_unit = unit;
    for digit in part.chars() {
        digit_unit /= 10;
        value = value.checked_add(u64::from(digit.to_digit(10)?).checked_mul(digit_unit)?)?;
        if digit_unit == 0 && digit != '0' {
            return None;
        }
    }
    Some(value)
}

/// `10us`, `10ms`, `1.5s`, `2m`, `1h`, `1d`.
pub fn span(text: &str) -> Option<Span> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let unit = match &text[digits..] {
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        "m" | "min" => 60_000_000,
        "h" => 3_600_000_000,
        "d" | "day" => 86_400_000_000,
        _ => return None,
    };
    decimal(&text[..digits], unit).map(Span)
}

/// `+1s`, `-200ms`.
pub fn signed_micros(text: &str) -> Option<i64> {
    let (sign, rest) = sign(text);
    i64::try_from(span(rest)?.0).ok().map(|micros| sign * micros)
}

/// `+1000ppm`, `-1%`.
pub fn ppm(text: &str) -> Option<i64> {
    let (sign, rest) = sign(text);
    let value = rest.strip_suffix("ppm").map_or_else(|| decimal(rest.strip_suffix('%')?, 10_000), number)?;
    i64::try_from(value).ok().map(|value| sign * value)
}

fn sign(text: &str) -> (i64, &str) {
    match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    }
}

/// `100/s`, `5/500ms`, `100/h`, `1/day`.
pub fn rate(text: &str) -> Option<Rate> {
    let (count, period) = text.split_once('/')?;
    let period = if period.starts_with(|c: char| c.is_ascii_digit()) {
        span(period)
    } else {
        span(&format!("1{period}"))
    };
    let micro_tokens = decimal(count, 1_000_000)?;
    Some(Rate { micro_tokens, period: period? })
}

/// `A->B`, or `B` alone.
pub fn change<T>(read: impl Fn(&str) -> Option<T>) -> impl Fn(&str) -> Option<(Option<T>, T)> {
    move |text| match text.split_once("->") {
        Some((from, to)) => Some((Some(read(from)?), read(to)?)),
        None => Some((None, read(text)?)),
    }
}

/// `0.25`.
pub fn share(text: &str) -> Option<Share> {
    Share::from_ppb(u32::try_from(decimal(text, 1_000_000_000)?).ok()?)
}

/// `18` or `17.5` tokens.
pub fn amount(text: &str) -> Option<Amount> {
    decimal(text, 1_000).map(Amount::from_milli)
}

/// `api`, `api:high` (a tier), `api/tokens:high` is written `api@tokens:high`.
pub fn key(text: &str) -> Option<CellKey> {
    let (rest, tier) = text.split_once(':').unwrap_or((text, CellKey::TIER));
    let (limit, meter) = rest.split_once('@').unwrap_or((rest, CellKey::METER));
    Some(CellKey { meter: meter.to_string(), tier: tier.to_string(), ..CellKey::of(limit) })
}

/// Several values between commas.
pub fn list<T>(one: impl Fn(&str) -> Option<T>) -> impl Fn(&str) -> Option<Vec<T>> {
    move |text| text.split(',').map(&one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_read_exactly() {
        assert_eq!(span("1.5s"), Some(Span(1_500_000)));
        assert_eq!(span("15"), None);
        assert_eq!((ppm("+1000ppm"), ppm("-0.1%")), (Some(1_000), Some(-1_000)));
        assert_eq!(rate("5/500ms"), Some(Rate::new(5, Span::from_millis(500))));
        assert_eq!(rate("1/day"), Some(Rate::new(1, Span::from_secs(86_400))));
        assert_eq!(share("0.25").map(Share::ppb), Some(250_000_000));
        assert_eq!(key("api@tokens:high").map(|key| (key.limit, key.meter, key.tier)).unwrap().1, "tokens");
    }

    #[test]
    fn a_word_that_nobody_asked_for_is_an_error() {
        let mut args = Args::parse("ask w1 wating=5").unwrap();
        assert_eq!(args.word("worker").unwrap(), "w1");
        assert_eq!(args.get("waiting", number), Ok(None));
        assert_eq!(args.finish().unwrap_err(), "ask: what is wating?");
    }
}
