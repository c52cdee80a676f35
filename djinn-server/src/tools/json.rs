//! JSON, character by character: where a value ends, or that it is none.

/// How deep values may nest; deeper ones are no calls.
const MOST_LEVELS: usize = 128;

/// What is expected next within the innermost container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expect {
    Value,
    /// A value or the end of an empty list.
    FirstItem,
    /// A key or the end of an empty object.
    FirstKey,
    Key,
    Colon,
    /// A comma or the container's end.
    Next,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Within {
    Structure(Expect),
    String {
        key: bool,
        escape: Escape,
    },
    /// `true`, `false` or `null`, with what is left of it.
    Word(&'static str),
    Number(Digits),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escape {
    None,
    Begun,
    /// Hexadecimal digits that are left.
    Digits(u8),
}

/// Where in a number: RFC 8259's grammar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Digits {
    Sign,
    Zero,
    Whole,
    Point,
    Fraction,
    E,
    ESign,
    Exponent,
}

impl Digits {
    fn next(self, c: char) -> Option<Digits> {
        use Digits::*;
        match (self, c) {
            (Sign, '0') => Some(Zero),
            (Sign, '1'..='9') | (Whole, '0'..='9') => Some(Whole),
            (Zero | Whole, '.') => Some(Point),
            (Point | Fraction, '0'..='9') => Some(Fraction),
            (Zero | Whole | Fraction, 'e' | 'E') => Some(E),
            (E, '+' | '-') => Some(ESign),
            (E | ESign | Exponent, '0'..='9') => Some(Exponent),
            _ => None,
        }
    }

    fn is_whole(self) -> bool {
        matches!(self, Digits::Zero | Digits::Whole | Digits::Fraction | Digits::Exponent)
    }
}

/// What a character did to a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scanned {
    /// The value goes on.
    More,
    /// The character is the value's last.
    Done,
    /// The value ended before the character, as numbers do.
    DoneBefore,
    /// This is no JSON.
    Wrong,
}

/// Scans one value, which may have white space before it.
#[derive(Clone, Debug)]
pub(super) struct ValueScanner {
    within: Within,
    /// Whether each open container is an object.
    open: Vec<bool>,
}

impl ValueScanner {
    pub(super) fn new() -> Self {
        ValueScanner { within: Within::Structure(Expect::Value), open: Vec::new() }
    }

    pub(super) fn push(&mut self, c: char) -> Scanned {
        match self.within {
            Within::Structure(expect) => self.structure(expect, c),
            Within::String { key, escape } => self.string(key, escape, c),
            Within::Word(rest) => match rest.strip_prefix(c) {
                Some("") => self.closed(),
                Some(rest) => self.to(Within::Word(rest)),
                None => Scanned::Wrong,
            },
            Within::Number(digits) => match digits.next(c) {
                Some(digits) => self.to(Within::Number(digits)),
                None if !digits.is_whole() => Scanned::Wrong,
                None if self.open.is_empty() => Scanned::DoneBefore,
                None => {
                    self.within = Within::Structure(Expect::Next);
                    self.push(c)
                }
            },
        }
    }

    fn to(&mut self, within: Within) -> Scanned {
        self.within = within;
        Scanned::More
    }

    fn expect(&mut self, expect: Expect) -> Scanned {
        self.to(Within::Structure(expect))
    }

    /// A value ended with this character.
    fn closed(&mut self) -> Scanned {
        if self.open.is_empty() { Scanned::Done } else { self.expect(Expect::Next) }
    }

    fn structure(&mut self, expect: Expect, c: char) -> Scanned {
        if matches!(c, ' ' | '\t' | '\n' | '\r') {
            return Scanned::More;
        }
        let string = |key| Within::String { key, escape: Escape::None };
        match (expect, c) {
            (Expect::FirstItem, ']') | (Expect::FirstKey, '}') => self.end(),
            (Expect::FirstKey | Expect::Key, '"') => self.to(string(true)),
            (Expect::Colon, ':') => self.expect(Expect::Value),
            (Expect::Next, ',') => {
                let object = self.open.last() == Some(&true);
                self.expect(if object { Expect::Key } else { Expect::Value })
            }
            (Expect::Next, ']') if self.open.last() == Some(&false) => self.end(),
            (Expect::Next, '}') if self.open.last() == Some(&true) => self.end(),
            (Expect::Value | Expect::FirstItem, '{' | '[') if self.open.len() < MOST_LEVELS => {
                self.open.push(c == '{');
                self.expect(if c == '{' { Expect::FirstKey } else { Expect::FirstItem })
            }
            (Expect::Value | Expect::FirstItem, _) => match c {
                '"' => self.to(string(false)),
                't' => self.to(Within::Word("rue")),
                'f' => self.to(Within::Word("alse")),
                'n' => self.to(Within::Word("ull")),
                '-' => self.to(Within::Number(Digits::Sign)),
                '0' => self.to(Within::Number(Digits::Zero)),
                '1'..='9' => self.to(Within::Number(Digits::Whole)),
                _ => Scanned::Wrong,
            },
            _ => Scanned::Wrong,
        }
    }

    fn end(&mut self) -> Scanned {
        self.open.pop();
        self.closed()
    }

    fn string(&mut self, key: bool, escape: Escape, c: char) -> Scanned {
        let escape = match (escape, c) {
            (Escape::None, '"') if key => return self.expect(Expect::Colon),
            (Escape::None, '"') => return self.closed(),
            (Escape::None, '\\') => Escape::Begun,
            (Escape::None, ' '..) => Escape::None,
            (Escape::Begun, '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't') => Escape::None,
            (Escape::Begun, 'u') => Escape::Digits(4),
            (Escape::Digits(left), '0'..='9' | 'a'..='f' | 'A'..='F') => match left {
                1 => Escape::None,
                left => Escape::Digits(left - 1),
            },
            _ => return Scanned::Wrong,
        };
        self.to(Within::String { key, escape })
    }
}
