//! A client that shows every byte: one connection for each request.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A server.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    pub(crate) headers: Vec<(String, String)>,
}

/// A whole response.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    /// Empty for what is no text.
    pub(crate) body: String,
    pub(crate) bytes: Vec<u8>,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The value of a sample of `/metrics`, by its name and labels.
    pub(crate) fn sample(&self, name: &str) -> f64 {
        let found = self.body.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        found.unwrap_or_else(|| panic!("no {name} in {}", self.body))
    }

    /// The object `error` of a refusal, whose parts are all there.
    pub(crate) fn error(&self) -> Value {
        let error = self.json()["error"].clone();
        assert!(error["message"].as_str().is_some_and(|text| !text.is_empty()), "{self:?}");
        assert!(
            error["type"].is_string() && error.get("param").is_some() && error.get("code").is_some(),
            "{self:?}"
        );
        error
    }

    /// The events of a stream, as their `data`; fails on every other line.
    pub(crate) fn events(&self) -> Vec<String> {
        assert_eq!(
            (self.status, self.header("content-type")),
            (200, Some("text/event-stream; charset=utf-8"))
        );
        let mut events = Vec::new();
        for block in self.body.split_terminator("\n\n") {
            match block.strip_prefix("data: ") {
                Some(data) => {
                    assert!(!data.is_empty() && !data.contains('\n'), "{block:?}");
                    events.push(data.to_owned());
                }
                None => assert_eq!(block, ":", "only comments stand between events"),
            }
        }
        assert!(self.body.is_empty() || self.body.ends_with("\n\n"));
        events
    }

    /// The events of a stream that ends well, without the last.
    pub(crate) fn chunks(&self) -> Vec<Value> {
        let mut events = self.events();
        assert_eq!(events.pop().as_deref(), Some("[DONE]"));
        events.iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }
}

/// A response whose body has not come yet.
pub(crate) struct Pending {
    reader: BufReader<TcpStream>,
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
}

impl Pending {
    fn is_chunked(&self) -> bool {
        self.headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked")
    }

    /// The next part of a chunked body; `None` at its end, or where the connection breaks off.
    pub(crate) fn part(&mut self) -> Option<String> {
        self.bytes().map(|bytes| String::from_utf8(bytes).unwrap())
    }

    fn bytes(&mut self) -> Option<Vec<u8>> {
        let mut line = String::new();
        self.reader.read_line(&mut line).ok()?;
        let length = usize::from_str_radix(line.trim_end(), 16).ok()?;
        let mut bytes = vec![0; length + 2];
        self.reader.read_exact(&mut bytes).ok()?;
        bytes.truncate(length);
        (length > 0).then_some(bytes)
    }

    /// The body of a response that tells its length.
    pub(crate) fn whole(&mut self) -> Vec<u8> {
        let length = self.headers.iter().find(|(name, _)| name == "content-length");
        let length = length.map_or(0, |(_, length)| length.parse().unwrap());
        let mut bytes = vec![0; length];
        self.reader.read_exact(&mut bytes).unwrap();
        bytes
    }

    pub(crate) fn finish(mut self) -> Reply {
        let mut bytes = Vec::new();
        if self.is_chunked() {
            while let Some(part) = self.bytes() {
                bytes.extend(part);
            }
        } else {
            bytes = self.whole();
        }
        let body = String::from_utf8(bytes.clone()).unwrap_or_default();
        Reply { status: self.status, headers: self.headers, body, bytes }
    }
}

impl Target {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Target { address, headers: Vec::new() }
    }

    pub(crate) fn with(&self, name: &str, value: &str) -> Self {
        let mut target = self.clone();
        target.headers.push((name.to_owned(), value.to_owned()));
        target
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        stream
    }

    /// Sends bytes as they are, and reads the head of what comes.
    pub(crate) fn raw(&self, bytes: &[u8]) -> Option<Pending> {
        let mut stream = self.connect();
        // The server may answer and close before it has read everything.
        let _ = stream.write_all(bytes);
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let status = line.split(' ').nth(1)?.parse().ok()?;
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok()?;
            let line = line.trim_end();
            if line.is_empty() {
                return Some(Pending { reader, status, headers });
            }
            let (name, value) = line.split_once(':')?;
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }

    /// Sends a request, and reads the head of its response.
    pub(crate) fn begin(&self, method: &str, path: &str, body: &[u8]) -> Pending {
        let mut head =
            format!("{method} {path} HTTP/1.1\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
        if !self.headers.iter().any(|(name, _)| name == "host") {
            head += &format!("host: {}\r\n", self.address);
        }
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        let bytes = [head.as_bytes(), b"\r\n", body].concat();
        self.raw(&bytes).expect("a response")
    }

    pub(crate) fn send(&self, method: &str, path: &str, body: &[u8]) -> Reply {
        self.begin(method, path, body).finish()
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        self.send("GET", path, b"")
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Reply {
        self.send("POST", path, body.to_string().as_bytes())
    }

    /// The response of a request that succeeds.
    pub(crate) fn ok(&self, path: &str, body: &Value) -> Value {
        let reply = self.post(path, body);
        assert_eq!(reply.status, 200, "{body} {reply:?}");
        reply.json()
    }

    /// The error of a request that is refused as meaningless, which names `param`.
    pub(crate) fn refused(&self, path: &str, body: &Value, param: &str) -> Value {
        let reply = self.post(path, body);
        assert_eq!(reply.status, 400, "{body} {reply:?}");
        let error = reply.error();
        assert_eq!(error["param"], param, "{body} {error}");
        assert_eq!(error["type"], "invalid_request_error");
        error
    }

    /// A number of the metrics' page.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        self.get("/metrics").sample(name)
    }
}
