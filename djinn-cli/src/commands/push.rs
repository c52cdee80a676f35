//! `djinn push`: uploads a model to a server's store; only missing pieces are sent.

use crate::args::PushArgs;
use crate::{loaded, output, remote, size};
use anyhow::Result;
use djinn_host::Meter;
use djinn_host::remote::Pushed;
use djinn_models::stored::LocalModel;
use djinn_models::{OpenOptions, open};
use serde::Serialize;

#[derive(Serialize)]
struct Output<'a> {
    model: &'a str,
    url: &'a str,
    #[serde(flatten)]
    pushed: Pushed,
}

pub(super) fn run(args: &PushArgs, quiet: bool) -> Result<()> {
    let server = remote::at("--to", &args.to, &args.api_key, None)?;
    let location = loaded::find(&args.model, quiet)?;
    // A model that does not open here would be refused there, after the upload.
    let own_name = open(&location, &OpenOptions::default())?.name;
    let name = args.name.clone().unwrap_or_else(|| loaded::name(&args.model, &own_name));
    let hashing = Meter::new(format!("hashing {name}"), quiet);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let model = LocalModel::of(&location, threads, &mut |done, total| hashing.set(done, Some(total)))?;
    drop(hashing);
    let url = server.url();
    let sending = Meter::new(format!("sending {name} to {url}"), quiet);
    let progress = |done, all| sending.set(done, Some(all));
    let pushed = match args.replace {
        true => server.replace(&model, &name, args.connections, &progress),
        false => server.push(&model, &name, args.connections, &progress),
    }?;
    drop(sending);
    if args.json {
        return output::json(&Output { model: &name, url, pushed });
    }
    let Pushed { bytes, sent_bytes, pieces, sent_pieces } = pushed;
    let (sent, all) = (size::human(sent_bytes), size::human(bytes));
    output::line(&format!(
        "{name} is at {url}: sent {sent_bytes} of {bytes} bytes ({sent} of {all}), {sent_pieces} of {pieces} pieces"
    ))
}
