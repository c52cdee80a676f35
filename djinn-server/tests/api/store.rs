//! Models that clients send: what arrives, what is refused, and what is visible when.

use super::client::{Reply, Target};
use super::{Files, Running, completion};
use djinn_host::{DeviceName, Setup};
use djinn_models::Location;
use djinn_models::stored::{ContentHash, LocalModel};
use djinn_server::{Keys, Limits, ModelStore, Server, Serving, SharedDevice};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

/// A server with a store, and a model to send.
pub(crate) struct Pushing {
    running: Running,
    folder: TempDir,
    files: Arc<Files>,
    pieces: BTreeMap<ContentHash, Vec<u8>>,
    manifest: Value,
}

const QUOTA: u64 = 4 << 20;

fn server(files: &Files, folder: &Path, quota: u64) -> Server {
    let setup = Setup { device: DeviceName::Cpu, threads: Some(1), ..Setup::default() };
    let serving = Serving { sequences: 2, ..Serving::default() };
    let model = setup.open(files.path().to_str().unwrap()).unwrap();
    let go_on = &mut |_, _| ControlFlow::Continue(());
    let (device, mut served) = SharedDevice::start(vec![model], &setup, &serving, go_on).unwrap();
    let store = ModelStore::open(&folder.join("store"), quota).unwrap();
    Server::new().model("tiny", served.remove(0)).device(device).store(store)
}

impl Pushing {
    pub(crate) fn new() -> Self {
        Self::with(|files, folder| server(files, folder, QUOTA))
    }

    fn with(server: impl FnOnce(&Files, &Path) -> Server) -> Self {
        let (files, folder) = (Arc::new(Files::new()), TempDir::new().unwrap());
        let running = Running::start(&files, server(&files, folder.path()));
        let (manifest, pieces) = cut(&files.path());
        Pushing { running, folder, files, pieces, manifest }
    }

    /// Another server over the same store, as after a crash: nothing is told to the one before but to end.
    fn again(self) -> Self {
        self.again_with(|files, folder| server(files, folder, QUOTA))
    }

    fn again_with(self, server: impl FnOnce(&Files, &Path) -> Server) -> Self {
        let Pushing { running, folder, files, pieces, manifest } = self;
        running.stop.stop();
        running.join();
        let running = Running::start(&files, server(&files, folder.path()));
        Pushing { running, folder, files, pieces, manifest }
    }

    pub(crate) fn target(&self) -> &Target {
        &self.running.target
    }

    fn body(&self, name: &str) -> Value {
        json!({ "name": name, "files": self.manifest })
    }

    fn register(&self, name: &str) -> Value {
        self.target().ok("/v1/store/manifests", &self.body(name))
    }

    /// Sends what is lacking; how many pieces were.
    fn send(&self, told: &Value) -> usize {
        let lacking = told["lacking"].as_array().unwrap();
        for piece in lacking {
            let hash = piece["hash"].as_str().unwrap();
            let bytes = &self.pieces[&hash.parse().unwrap()];
            let have = piece["have"].as_u64().unwrap() as usize;
            assert_eq!(self.put(hash, have, &bytes[have..]).status, 201);
        }
        lacking.len()
    }

    fn put(&self, hash: &str, offset: usize, bytes: &[u8]) -> Reply {
        let target = self.target().with("upload-offset", &offset.to_string());
        target.send("PUT", &format!("/v1/store/blobs/{hash}"), bytes)
    }

    fn commit(&self, told: &Value) -> Reply {
        let id = told["id"].as_str().unwrap();
        self.target().post(&format!("/v1/store/manifests/{id}/commit"), &json!({}))
    }

    fn models(&self) -> Vec<String> {
        let list = self.target().get("/v1/models").json();
        list["data"].as_array().unwrap().iter().map(|m| m["id"].as_str().unwrap().to_owned()).collect()
    }

    /// A piece with some bytes, and the bytes.
    fn large(&self) -> (String, Vec<u8>) {
        let (hash, bytes) = self.pieces.iter().max_by_key(|(_, bytes)| bytes.len()).unwrap();
        (hash.to_string(), bytes.clone())
    }

    fn text(&self, model: &str) -> Value {
        let body = completion("Once upon", json!({ "model": model }));
        self.target().ok("/v1/completions", &body)["choices"][0]["text"].clone()
    }

    /// Files in a folder of the store, without what leads to them.
    fn kept(&self, part: &str) -> usize {
        fn count(folder: &Path) -> usize {
            let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
            entries.map(|path| if path.is_dir() { count(&path) } else { 1 }).sum()
        }
        count(&self.folder.path().join("store").join(part))
    }
}

fn cut(folder: &Path) -> (Value, BTreeMap<ContentHash, Vec<u8>>) {
    let model = LocalModel::of(&Location::Directory(folder.to_owned()), 1, &mut |_, _| ()).unwrap();
    let read = |(hash, place): (&ContentHash, &djinn_models::stored::PiecePlace)| {
        let bytes = fs::read(&place.path).unwrap();
        (*hash, bytes[place.range.start as usize..place.range.end as usize].to_vec())
    };
    (json!(model.manifest.files), model.places.iter().map(read).collect())
}

#[test]
fn a_model_is_sent_served_and_removed() {
    let pushing = Pushing::new();
    let told = pushing.register("org/mine");
    let bytes: usize = pushing.pieces.values().map(Vec::len).sum();
    assert_eq!((&told["bytes"], &told["lacking_bytes"]), (&json!(bytes), &json!(bytes)));
    assert_eq!(pushing.commit(&told).error()["code"], "pieces_missing");
    assert_eq!(pushing.send(&told), pushing.pieces.len());
    assert_eq!(pushing.models(), ["tiny"], "it is not visible before it is committed");
    let reply = pushing.commit(&told);
    assert_eq!((reply.status, &reply.json()["id"]), (201, &json!("org/mine")));
    assert_eq!(pushing.models(), ["tiny", "org/mine"]);
    assert_eq!(pushing.text("org/mine"), pushing.text("tiny"));

    // The same again, and another one with equal pieces, cost nothing.
    let again = pushing.register("org/mine");
    assert_eq!((&again["committed"], &again["lacking_bytes"]), (&json!(true), &json!(0)));
    let second = pushing.register("second");
    assert_eq!((&second["lacking_bytes"], pushing.send(&second)), (&json!(0), 0));
    assert_eq!(pushing.commit(&second).status, 201);
    assert_eq!(pushing.kept("blobs"), pushing.pieces.len());
    let shown = pushing.target().get("/v1/store").json();
    assert_eq!((&shown["bytes"], shown["models"].as_array().unwrap().len()), (&json!(bytes), 2));

    // Another model under a name that is taken.
    fs::write(pushing.files.path().join("generation_config.json"), "{}").unwrap();
    let (other, _) = cut(&pushing.files.path());
    for name in ["second", "tiny"] {
        let reply = pushing.target().post("/v1/store/manifests", &json!({ "name": name, "files": other }));
        assert_eq!((reply.status, &reply.error()["code"]), (409, &json!("model_exists")), "{name}");
    }

    // What was sent is there after a start, and goes when nothing names it.
    let pushing = pushing.again();
    assert_eq!(pushing.models(), ["tiny", "org/mine", "second"]);
    assert_eq!(pushing.text("second"), pushing.text("tiny"));
    let delete = |path: &str| pushing.target().send("DELETE", path, b"");
    assert_eq!(delete("/v1/models/org/mine").json()["deleted"], true);
    assert_eq!(
        (pushing.models(), pushing.kept("blobs")),
        (vec!["tiny".into(), "second".into()], pushing.pieces.len())
    );
    assert_eq!(pushing.text("second"), pushing.text("tiny"));
    assert_eq!(delete("/v1/models/second").status, 200);
    assert_eq!((pushing.kept("blobs"), pushing.kept("models")), (0, 0));
    assert_eq!(delete("/v1/models/second").status, 404);
    assert_eq!(delete("/v1/models/tiny").status, 409);
}

/// A server that starts without a model, with or without steering vectors that fit no model.
fn empty(folder: &Path, with_steering: bool) -> Server {
    let steering = folder.join("steering");
    fs::create_dir_all(&steering).unwrap();
    fs::write(steering.join("wide.json"), json!({ "layer": 0, "vector": vec![1; 7] }).to_string()).unwrap();
    let setup = Setup { device: DeviceName::Cpu, threads: Some(1), ..Setup::default() };
    let serving = Serving { steering_dir: with_steering.then_some(steering), ..Serving::default() };
    let go_on = &mut |_, _| ControlFlow::Continue(());
    let (device, _) = SharedDevice::start(Vec::new(), &setup, &serving, go_on).unwrap();
    Server::new().device(device).store(ModelStore::open(&folder.join("store"), QUOTA).unwrap())
}

/// A client is told that its model is there only once it can be used.
#[test]
fn a_model_is_committed_once_it_is_served() {
    let pushing = Pushing::with(|_, folder| empty(folder, true));
    let told = pushing.register("mine");
    pushing.send(&told);
    let fails = |pushing: &Pushing| {
        let told = pushing.register("mine");
        assert_eq!((&told["committed"], &told["lacking_bytes"]), (&json!(false), &json!(0)));
        let reply = pushing.commit(&told);
        let message = reply.error()["message"].to_string();
        assert!(reply.status == 500 && message.contains("wide.json"), "{reply:?}");
        assert!(pushing.models().is_empty());
    };
    fails(&pushing);
    fails(&pushing);
    assert_eq!((pushing.kept("models"), pushing.kept("blobs")), (0, pushing.pieces.len()));
    let pushing = pushing.again_with(|_, folder| empty(folder, false));
    assert_eq!(pushing.commit(&pushing.register("mine")).status, 201);
    let again = pushing.register("mine");
    assert_eq!((&again["committed"], pushing.commit(&again).status), (&json!(true), 201));
    assert_eq!(pushing.models(), ["mine"]);

    // It is stored, but this server cannot serve it when it starts, nor later.
    let pushing = pushing.again_with(|_, folder| empty(folder, true));
    fails(&pushing);
    assert_eq!(pushing.target().get("/v1/store").json()["models"][0]["name"], "mine");
    // Now it could, but for its configuration, which comes back meanwhile.
    let config = pushing.folder.path().join("store/models").join("mine").join("config.json");
    let kept = fs::read(&config).unwrap();
    fs::remove_file(&config).unwrap();
    let pushing = pushing.again_with(|_, folder| empty(folder, false));
    let told = pushing.register("mine");
    assert_eq!((&told["committed"], pushing.commit(&told).status), (&json!(false), 400));
    fs::write(&config, kept).unwrap();
    assert_eq!(pushing.commit(&told).status, 201);
    assert_eq!(pushing.models(), ["mine"]);
    let body = completion("Once upon", json!({ "model": "mine" }));
    pushing.target().ok("/v1/completions", &body);
}

#[test]
fn a_piece_goes_on_where_it_was_broken_off() {
    let pushing = Pushing::new();
    pushing.register("mine");
    let (hash, bytes) = pushing.large();
    let path = format!("/v1/store/blobs/{hash}");
    let have = |pushing: &Pushing| {
        let reply = pushing.target().begin("HEAD", &path, b"");
        let header = |name: &str| reply.headers.iter().find(|(known, _)| known == name).unwrap().1.clone();
        (header("upload-offset"), header("upload-complete"))
    };
    assert_eq!(have(&pushing), ("0".to_owned(), "?0".to_owned()));
    assert_eq!(pushing.put(&hash, 0, &bytes[..100]).status, 202);
    // A connection that breaks within the body.
    let request = format!(
        "PUT {path} HTTP/1.1\r\nhost: localhost\r\nupload-offset: 100\r\ncontent-length: {}\r\n\r\n",
        bytes.len() - 100
    );
    {
        use std::io::{Read, Write};
        let mut stream = pushing.target().connect();
        stream.write_all(request.as_bytes()).unwrap();
        stream.write_all(&bytes[100..300]).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        // Once the server has closed, it has written what came.
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let settled = (0..2000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(1));
        have(&pushing).0 == "300"
    });
    assert!(settled, "{:?}", have(&pushing));
    let wrong = pushing.put(&hash, 0, &bytes);
    assert_eq!((wrong.status, &wrong.error()["code"]), (409, &json!("offset_mismatch")));

    // After a restart as well.
    let pushing = pushing.again();
    assert_eq!(have(&pushing).0, "300");
    assert_eq!(pushing.put(&hash, 300, &bytes[300..]).status, 201);
    assert_eq!(have(&pushing), (bytes.len().to_string(), "?1".to_owned()));
    assert_eq!(pushing.put(&hash, 0, &bytes).error()["code"], "piece_exists");
    let told = pushing.register("mine");
    pushing.send(&told);
    assert_eq!(pushing.commit(&told).status, 201);
    assert_eq!(pushing.text("mine"), pushing.text("tiny"));
}

/// Each byte comes in time, and the piece never would.
#[test]
fn a_piece_that_trickles_is_broken_off() {
    use std::io::{Read, Write};
    let time = std::time::Duration::from_millis(200);
    let limits = Limits { body_time: time, ..Limits::default() };
    let pushing = Pushing::with(|files, folder| server(files, folder, QUOTA).limits(limits));
    let told = pushing.register("mine");
    let (hash, bytes) = pushing.large();
    let mut stream = pushing.target().connect();
    stream.set_read_timeout(Some(time / 10)).unwrap();
    let length = bytes.len();
    let head =
        format!("PUT /v1/store/blobs/{hash} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = [0; 12];
    let answered = bytes.iter().take(500).any(|&byte| {
        // The server may have closed.
        let _ = stream.write_all(&[byte]);
        stream.read(&mut answer).is_ok()
    });
    assert!(answered && &answer == b"HTTP/1.1 408", "{:?}", String::from_utf8_lossy(&answer));
    // What came stays.
    assert!(pushing.register("mine")["lacking_bytes"].as_u64() < told["lacking_bytes"].as_u64());
}

#[test]
fn a_changed_byte_is_found() {
    let pushing = Pushing::new();
    let told = pushing.register("mine");
    let (hash, bytes) = pushing.large();
    let mut changed = bytes.clone();
    changed[bytes.len() / 2] ^= 1;
    let reply = pushing.put(&hash, 0, &changed);
    assert_eq!((reply.status, &reply.error()["code"]), (422, &json!("hash_mismatch")));
    assert_eq!((pushing.kept("partial"), pushing.kept("blobs")), (0, 0));
    // On the disk, between two requests.
    assert_eq!(pushing.put(&hash, 0, &bytes[..100]).status, 202);
    let partial = pushing.folder.path().join("store/partial").join(&hash);
    fs::write(&partial, &changed[changed.len() - 100..]).unwrap();
    assert_eq!(pushing.put(&hash, 100, &bytes[100..]).status, 422);
    assert_eq!(pushing.put(&hash, 0, &[&bytes[..], b"x"].concat()).status, 400);
    let pushing = pushing.again();
    assert_eq!(pushing.send(&pushing.register("mine")), pushing.pieces.len());
    assert_eq!(pushing.commit(&told).status, 201);
}

/// A disk without room, at each of its files: one line, nothing half visible, and it goes on once there is room.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_told_and_a_push_goes_on() {
    use std::os::unix::fs::symlink;
    let pushing = Pushing::new();
    let store = pushing.folder.path().join("store");
    let full = |reply: &Reply| {
        let error = reply.error();
        let message = error["message"].as_str().unwrap().to_owned();
        assert_eq!((reply.status, &error["code"]), (507, &json!("store_full")), "{message}");
        assert!(message.contains("no room") && message.lines().count() == 1, "{message}");
    };
    // The manifest is not taken.
    let id = pushing.register("mine")["id"].as_str().unwrap().to_owned();
    let path = "/v1/store/manifests";
    assert_eq!(pushing.target().send("DELETE", &format!("{path}/{id}"), b"").status, 200);
    symlink("/dev/full", store.join(format!("registered/.unfinished-{id}"))).unwrap();
    full(&pushing.target().post(path, &pushing.body("mine")));
    assert_eq!((pushing.kept("registered"), pushing.commit(&json!({ "id": id })).status), (0, 404));
    let told = pushing.register("mine");
    // Nor is a piece, whose client reads the answer once it has sent the rest.
    let (hash, bytes) = pushing.large();
    symlink("/dev/full", store.join("partial").join(&hash)).unwrap();
    full(&pushing.put(&hash, 0, &bytes));
    let long = vec![7; 3 << 20];
    let other = ContentHash::of(&long).to_string();
    let files = json!([{ "path": "x.gguf", "pieces": [{ "hash": other, "bytes": long.len() }] }]);
    pushing.target().ok(path, &json!({ "name": "long", "files": files }));
    symlink("/dev/full", store.join("partial").join(&other)).unwrap();
    full(&pushing.put(&other, 0, &long));
    assert_eq!((pushing.models(), pushing.kept("blobs")), (vec!["tiny".to_owned()], 0));
    assert!(!pushing.text("tiny").as_str().unwrap().is_empty(), "others are answered");
    fs::remove_file(store.join("partial").join(&hash)).unwrap();
    pushing.send(&told);
    // The model cannot be put in its place: its pieces wait.
    fs::write(store.join("models/mine"), "").unwrap();
    assert_eq!(pushing.commit(&told).status, 500);
    assert_eq!((pushing.models(), pushing.kept("models")), (vec!["tiny".to_owned()], 1));
    fs::remove_file(store.join("models/mine")).unwrap();
    assert_eq!(
        (pushing.register("mine")["lacking_bytes"].clone(), pushing.commit(&told).status),
        (json!(0), 201)
    );
    assert_eq!(pushing.text("mine"), pushing.text("tiny"));
}

#[test]
fn metrics_tell_what_the_store_holds_and_did() {
    let pushing = Pushing::new();
    let sample = |name: &str| {
        let page = pushing.target().get("/metrics").body;
        let line = page
            .lines()
            .find_map(|line| line.strip_prefix(&format!("djinn_store_{name} ")).map(str::to_owned));
        line.unwrap_or_else(|| panic!("no {name} in {page}")).parse::<u64>().unwrap()
    };
    let bytes: usize = pushing.pieces.values().map(Vec::len).sum();
    let told = pushing.register("mine");
    pushing.target().post("/v1/store/manifests", &pushing.body("tiny"));
    pushing.target().post("/v1/store/manifests", &pushing.body("a b"));
    assert_eq!(pushing.commit(&told).status, 409);
    let (hash, piece) = pushing.large();
    assert_eq!(pushing.put(&hash, 0, &vec![0; piece.len()]).status, 422);
    assert_eq!((sample("registered"), sample("models"), sample("bytes")), (1, 0, bytes as u64));
    pushing.send(&told);
    assert_eq!(pushing.commit(&told).status, 201);
    let pieces = pushing.pieces.len() as u64;
    for (name, value) in [
        ("quota_bytes", QUOTA),
        ("bytes", bytes as u64),
        ("pieces", pieces),
        ("models", 1),
        ("registered", 0),
        ("received_bytes_total", (bytes + piece.len()) as u64),
        ("pieces_total{outcome=\"kept\"}", pieces),
        ("pieces_total{outcome=\"hash_mismatch\"}", 1),
        ("pushes_total{outcome=\"committed\"}", 1),
        ("pushes_total{outcome=\"refused\"}", 2),
        ("pushes_total{outcome=\"failed\"}", 1),
        ("pushes_total{outcome=\"forgotten\"}", 0),
        ("collected_pieces_total", 0),
    ] {
        assert_eq!(sample(name), value, "{name}");
    }
    assert_eq!(pushing.target().send("DELETE", "/v1/models/mine", b"").status, 200);
    assert_eq!((sample("bytes"), sample("collected_bytes_total")), (0, bytes as u64));
    assert_eq!(sample("collected_pieces_total"), pieces);
}

#[test]
fn what_no_model_needs_is_refused_before_it_comes() {
    let pushing = Pushing::new();
    let target = pushing.target();
    let (hash, bytes) = pushing.large();
    assert_eq!(pushing.put(&hash, 0, &bytes).status, 404, "no manifest names it");
    for bad in ["abc", "..%2f..%2fx", &"A".repeat(64)] {
        assert_eq!(pushing.put(bad, 0, b"x").status, 400, "{bad}");
    }
    let path = "/v1/store/manifests";
    for name in ["", "../x", "a/b/c", ".x", "a/plan"] {
        target.refused(path, &pushing.body(name), "name");
    }
    target.refused(path, &json!({ "files": [] }), "name");
    target.refused(path, &json!({ "name": "x" }), "files");
    target.refused(path, &json!({ "name": "x", "files": [{ "path": "config.json" }] }), "files");
    let mut large = pushing.body("large");
    large["files"][0]["pieces"][0]["bytes"] = json!(200 << 20);
    let reply = target.post(path, &large);
    assert_eq!((reply.status, &reply.error()["code"]), (507, &json!("store_full")));
    assert!(
        target.with("upload-offset", "-1").send("PUT", &format!("/v1/store/blobs/{hash}"), b"").status == 400
    );

    // A stranger's files that are no model.
    let broken = TempDir::new().unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(pushing.files.path().join(file), broken.path().join(file)).unwrap();
    }
    fs::write(broken.path().join("config.json"), "{\"architectures\": [\"NoneSuch\"]}").unwrap();
    let (manifest, pieces) = cut(broken.path());
    let told = target.ok(path, &json!({ "name": "broken", "files": manifest }));
    let pushing = Pushing { pieces, ..pushing };
    pushing.send(&told);
    let reply = pushing.commit(&told);
    assert_eq!((reply.status, &reply.error()["param"]), (400, &json!("files")), "{reply:?}");
    assert_eq!((pushing.models(), pushing.kept("models")), (vec!["tiny".to_owned()], 0));
    let forget = format!("{path}/{}", told["id"].as_str().unwrap());
    assert_eq!(pushing.target().send("DELETE", &forget, b"").status, 200);
    assert_eq!((pushing.kept("blobs"), pushing.kept("registered")), (0, 0));
}

#[test]
fn only_keys_that_may_send_models() {
    let pushing = Pushing::with(|files, folder| {
        let keys = Keys::new(["reader"]).unwrap().and(Keys::new(["pusher"]).unwrap().with_push());
        server(files, folder, QUOTA).keys(keys)
    });
    let reader = pushing.target().with("authorization", "Bearer reader");
    let pusher = pushing.target().with("authorization", "Bearer pusher");
    let (path, body) = ("/v1/store/manifests", pushing.body("mine"));
    assert_eq!(pushing.target().post(path, &body).status, 401);
    let told = pusher.ok(path, &body);
    let id = told["id"].as_str().unwrap();
    let blob = format!("/v1/store/blobs/{}", pushing.large().0);
    for (method, path) in [
        ("POST", path.to_owned()),
        ("GET", "/v1/store".to_owned()),
        ("PUT", blob.clone()),
        ("HEAD", blob),
        ("POST", format!("{path}/{id}/commit")),
        ("DELETE", format!("{path}/{id}")),
        ("DELETE", "/v1/models/tiny".to_owned()),
    ] {
        let reply = reader.begin(method, &path, body.to_string().as_bytes());
        assert_eq!(reply.status, 403, "{method} {path}");
    }
    assert_eq!((reader.get("/v1/models").status, pusher.get("/v1/models").status), (200, 200));
    // A server that others reach, without keys.
    let files = Arc::new(Files::new());
    let folder = TempDir::new().unwrap();
    let public =
        Running::start_at(&files, server(&files, folder.path(), QUOTA).bind("0.0.0.0:0").unwrap(), false);
    let local = std::net::SocketAddr::from(([127, 0, 0, 1], public.target.address.port()));
    assert_eq!(Target::new(local).get("/v1/store").status, 403);
    assert_eq!(super::shared().get("/v1/store").status, 404, "a server without a store");
}

#[test]
fn one_process_has_a_store() {
    let folder = TempDir::new().unwrap();
    let first = ModelStore::open(folder.path(), QUOTA).unwrap();
    let second = ModelStore::open(folder.path(), QUOTA).unwrap_err().to_string();
    assert!(second.contains("another process has the store"), "{second}");
    drop(first);
    // What a crash left: a model that was not renamed, and pieces that nothing names.
    for path in ["models/.unfinished-x", "blobs/ab"] {
        fs::create_dir_all(folder.path().join(path)).unwrap();
    }
    let stray = [format!("blobs/ab/ab{}", "0".repeat(62)), format!("partial/{}", "1".repeat(64))];
    stray.iter().for_each(|path| fs::write(folder.path().join(path), "x").unwrap());
    ModelStore::open(folder.path(), QUOTA).unwrap();
    assert!(stray.iter().all(|path| !folder.path().join(path).exists()));
    assert!(!folder.path().join("models/.unfinished-x").exists());
}
