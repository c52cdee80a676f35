//! Experiment 2 through a network, against a server on this machine.

use super::{bench, text};
use djinn_host::{DeviceName, Setup};
use djinn_server::{ModelStore, Server, Serving, SharedDevice};
use serde_json::Value;
use std::ops::ControlFlow;
use std::path::Path;

#[test]
fn a_model_is_sent_and_measured_through_the_network() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let checkpoint = Path::new(env!("CARGO_MANIFEST_DIR")).join("../djinn-models/tests/checkpoints/tied-f32");
    let model = checkpoint.display().to_string();
    let setup = Setup { device: DeviceName::Cpu, threads: Some(1), context: Some(64), ..Setup::default() };
    let go_on = &mut |_, _| ControlFlow::Continue(());
    let (device, _) = SharedDevice::start(vec![], &setup, &Serving::default(), go_on).expect("a device");
    let store = ModelStore::open(&folder.path().join("store"), 4 << 20).expect("a store");
    let bound = Server::new().device(device).store(store).bind("127.0.0.1:0").expect("a port");
    let (url, stop) = (format!("http://{}", bound.address()), bound.stop());
    let served = std::thread::spawn(move || bound.run());

    let size = ["--prompt", "12", "--tokens", "5", "--runs", "2", "--threads", "1", "--device", "cpu"];
    let (json, figures) = (at("remote.json"), at("figures"));
    let run =
        |more: &[&str]| bench(&[&["exp2", "--server", &url, "--json", &json], &size[..], more].concat());
    let read =
        || -> Value { serde_json::from_str(&std::fs::read_to_string(&json).expect("JSON")).expect("JSON") };
    let output = run(&["--model", &model, "--figures", &figures]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let document = read();
    let (push, again) = (&document["push"], &document["again"]);
    assert!(push["bytes"].as_u64() > Some(10_000) && push["sent_bytes"] == push["bytes"], "{push}");
    assert_eq!((&again["sent_bytes"], &again["bytes"]), (&Value::from(0), &push["bytes"]));
    assert_eq!(document["same_tokens"], true);
    assert_eq!(document["local"].as_array().map(Vec::len), Some(2));
    let answers = document["remote"].as_array().expect("answers");
    assert_eq!(answers.len(), 2);
    for answer in answers {
        let [client, server] = ["ttft_ms", "server_ttft_ms"].map(|name| answer[name].as_f64().expect("ms"));
        assert!(0.0 < server && server < client, "{answer}");
        assert_eq!(answer["tokens"].as_array().map(Vec::len), Some(5));
        assert!(answer["sent_bytes"].as_u64() > Some(50), "{answer}");
    }
    assert_ne!(answers[0]["tokens"], Value::Null);
    for name in ["bytes_per_token", "tpot_ms", "local_ttft_ms", "network_ttft_ms"] {
        assert!(document["medians"][name].as_f64() > Some(0.0), "{name}: {}", document["medians"]);
    }
    let report = text(&output.stdout);
    assert!(report.contains("The tokens are this machine's."), "{report}");
    assert!(text(&bench(&["report", &json]).stdout).ends_with(&report));
    let svg = std::fs::read_to_string(folder.path().join("figures/remote.svg")).expect("a figure");
    assert!(svg.starts_with("<svg") && svg.contains("this machine") && svg.contains("client"), "{svg}");

    // A model that the server has, without this machine's part.
    let output = run(&["--model", &model, "--named", "tied-f32", "--no-local"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let document = read();
    assert_eq!((&document["push"], &document["same_tokens"]), (&Value::Null, &Value::Null));

    for (more, why) in [
        (&["--model", "synthetic:tiny"][..], "cannot be sent; --named takes what the server has"),
        (&["--model", &model, "--named", "none"], "the model `none` does not exist"),
        (&["--model", &model, "--systems", "FULL"], "cannot be used with"),
    ] {
        let said = text(&run(more).stderr);
        assert!(said.contains(why), "{more:?}: {said}");
    }
    stop.stop();
    served.join().expect("no panic").expect("it ends");
    assert!(text(&run(&["--model", &model]).stderr).contains("no answer from"));
}
