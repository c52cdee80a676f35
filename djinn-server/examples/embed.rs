//! A server in a program of one's own: `cargo run --release -p djinn-server --example embed -- models/smollm2`.

use djinn_host::Setup;
use djinn_server::{ServedModel, Server, Serving};

fn main() -> djinn_server::Result<()> {
    let place = std::env::args().nth(1).unwrap_or_else(|| "models/smollm2".to_owned());
    // At most 1 GiB on the device; the other weights stream from host memory.
    let setup = Setup { vram: Some(1 << 30), context: Some(2048), ..Setup::default() };
    let model = ServedModel::open(&place, &setup, &Serving { sequences: 8, ..Serving::default() })?;
    let server = Server::new().model("mine", model).bind("127.0.0.1:5556")?;
    println!("serving at http://{}/v1", server.address());
    server.run()
}
