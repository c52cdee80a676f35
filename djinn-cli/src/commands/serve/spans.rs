//! Spans of requests, as OpenTelemetry's variables ask for them.

use anyhow::Result;
use djinn_server::Server;

/// The same server, whose spans are sent where the environment names a collector.
#[cfg(feature = "otel")]
pub(super) fn sent(server: Server) -> Result<Server> {
    Ok(match djinn_server::Telemetry::from_env()? {
        Some(telemetry) => server.telemetry(telemetry),
        None => server,
    })
}

/// The same server; a variable that names a collector is named in a warning, since this build sends nothing.
#[cfg(not(feature = "otel"))]
pub(super) fn sent(server: Server) -> Result<Server> {
    let variables = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
    if let Some(name) = variables.iter().find(|name| std::env::var_os(name).is_some_and(|at| !at.is_empty()))
    {
        log::warn!(
            target: "djinn::server",
            "{name} is set, and this build sends no spans; build djinn-cli with --features otel"
        );
    }
    Ok(server)
}
