//! `djinn serve`: models over HTTP, until the process is told to end.

mod lines;
mod models;
#[cfg(unix)]
mod renewal;
mod spans;

use crate::args::{AccessArgs, LoadArgs, ServeArgs, StoreArgs};
use crate::interrupt::{INTERRUPTED, Interrupt, UserSignals};
use crate::{loaded, output, profile};
use anyhow::{Result, anyhow, bail};
use djinn_host::{DeviceName, Error, Meter};
use djinn_server::{AccessRules, Keys, Limits, ModelStore, ServedModel, Server, Serving, SharedDevice};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::Duration;

pub(super) fn run(
    args: &ServeArgs,
    interrupt: &Interrupt,
    signals: Option<UserSignals>,
    quiet: bool,
) -> Result<ExitCode> {
    #[cfg(unix)]
    let inherited = renewal::inherited()?;
    #[cfg(not(unix))]
    let inherited: Option<TcpListener> = None;
    let address = match &inherited {
        Some(listener) => listener.local_addr()?,
        None => SocketAddr::new(args.host, args.port),
    };
    let keys = keys(address.ip(), args)?;
    let device_name = args.device.device.find()?;
    let serving = serving(&args.load, keys.len())?;
    let log_format = args.log_format.into();
    let written = lines::install(log_format, quiet)?;
    let mut server = spans::sent(Server::new())?;
    // Before the models are loaded, which may take minutes. Clients that connect meanwhile wait.
    let listener = match inherited {
        Some(listener) => listener,
        None => listen(address)?,
    };
    if let Some(folder) = &args.store.store {
        server = server.store(ModelStore::open(folder, args.store.store_quota)?);
    }
    if let Some(machine) = profile::measured()? {
        server = server.machine(machine);
    }
    let setup = args.device.with(&args.memory);
    let models = models::open(args, &setup.open_options(), quiet)?;
    // Of several models, one that leaves the device takes the pages of paused sessions with it.
    let is_alone = models.len() == 1 && args.store.store.is_none();
    if is_alone && args.load.swap_space > 0 && serving.scheduler.policy == "none" {
        bail!(
            "--swap-space is for sessions that give way to others, and under the policy `none` no session does; give \
             another --policy, or drop --swap-space"
        );
    }
    let first = models.first().map_or_else(|| "no model".to_owned(), |first| first.model.name.clone());
    let progress = Meter::new(format!("loading {first}"), quiet);
    let mut on_progress = |done, total| {
        progress.set(done, Some(total));
        if interrupt.asked() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let loading = interrupt.work();
    let (names, models): (Vec<_>, Vec<_>) =
        models.into_iter().map(|named| (named.names, named.model)).unzip();
    // Models that clients send are not known yet.
    let setup = if args.store.store.is_some() { setup } else { loaded::settled(setup, &models, quiet) };
    // With uploads, models may be added later.
    let started = match args.store.store {
        Some(_) => SharedDevice::start(models, &setup, &serving, &mut on_progress)
            .map(|(device, served)| (Some(device), served)),
        None => {
            SharedDevice::start_all(models, &setup, &serving, &mut on_progress).map(|served| (None, served))
        }
    };
    drop(progress);
    let interrupted = || {
        output::remark("interrupted while loading");
        Ok(ExitCode::from(INTERRUPTED))
    };
    let (device, started) = match started {
        Err(djinn_server::Error::Host(Error::Engine(djinn_engine::Error::Cancelled))) => {
            return interrupted();
        }
        started => started.map_err(|error| told(error, &args.load, device_name))?,
    };
    server = server.limits(limits(&args.load)?).keys(keys).log_format(log_format);
    let contexts: BTreeSet<u64> = started.iter().map(ServedModel::context).collect();
    let served = names.concat().join(", ");
    for (names, model) in names.into_iter().zip(started) {
        server = server.named(names, model);
    }
    if let Some(device) = device {
        server = server.device(device);
    }
    let server = server.access(access(address.ip(), &args.access));
    let bound = server.at(listener)?;
    let (stop, renew, reload) = (bound.stop(), bound.stop(), bound.reload());
    let reload = move || {
        lines::remark("loading again; requests that are served may end first");
        reload.reload();
    };
    let renew = move || {
        lines::remark("beginning anew; requests that are served may end first");
        renew.renew();
    };
    if let Some(signals) = signals {
        signals.obey(reload, renew);
    }
    let serves = interrupt.serve(move || {
        lines::remark("ending; requests that are served may end first");
        stop.stop();
    });
    drop(loading);
    if !serves {
        return interrupted();
    }
    if !quiet {
        let at = format!("at http://{}/v1", bound.address());
        lines::remark(&match (contexts.first(), contexts.last()) {
            (Some(least), Some(most)) if least == most => {
                format!("serving {served} {at}, with a context of {least} tokens")
            }
            (Some(least), Some(most)) => {
                format!("serving {served} {at}, with contexts of {least} to {most} tokens")
            }
            _ => format!("serving the models that clients send {at}; nothing is loaded yet"),
        });
    }
    #[cfg(unix)]
    if let Some(listener) = bound.run_or_renew()? {
        drop(written);
        renewal::renew(listener)?;
    }
    #[cfg(not(unix))]
    {
        bound.run()?;
        drop(written);
    }
    Ok(ExitCode::SUCCESS)
}

fn listen(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => {
            anyhow!(
                "cannot listen at {address}, where another program does; end that, or give another --port"
            )
        }
        _ => anyhow::Error::from(error).context(format!("cannot listen at {address}")),
    })
}

/// Why models cannot be started, in the words of the flags.
fn told(error: djinn_server::Error, load: &LoadArgs, device: DeviceName) -> anyhow::Error {
    let djinn_server::Error::Host(error) = error else { return error.into() };
    // The CPU device's memory is the host's.
    let kv_cache = load.kv_cache.filter(|_| device == DeviceName::Cpu).unwrap_or(0);
    let asked =
        [("--hook-memory", load.hook_memory), ("--kv-cache", kv_cache), ("--swap-space", load.swap_space)];
    loaded::blame(error, &asked)
}

/// The required keys. Without any, the address must be one that only this machine reaches.
fn keys(host: IpAddr, args: &ServeArgs) -> Result<Keys> {
    let AccessArgs { api_key, api_key_file, insecure_public, .. } = &args.access;
    let mut keys = Keys::new(api_key)?;
    if let Some(file) = api_key_file {
        keys = keys.and(Keys::from_file(file)?);
    }
    let StoreArgs { store, push_key, push_key_file, .. } = &args.store;
    let mut pushing = Keys::new(push_key)?;
    if let Some(file) = push_key_file {
        pushing = pushing.and(Keys::from_file(file)?);
    }
    if store.is_none() && !pushing.is_empty() {
        bail!("--push-key lets clients send models, and there is no place for them; give --store DIR");
    }
    let keys = keys.and(pushing.with_push());
    if keys.is_empty() && !host.is_loopback() && !insecure_public {
        bail!(
            "--host {host} lets others reach the server, and it has no key; give --api-key-file FILE, or \
             --insecure-public if that is meant"
        );
    }
    Ok(keys)
}

/// The most named sessions of one key. If there are several `keys`, it is a quarter of all, so that the sessions of one
/// do not displace those of the others.
fn sessions_per_key(sessions: usize, keys: usize) -> usize {
    if keys > 1 { sessions.div_ceil(4) } else { sessions }
}

fn serving(load: &LoadArgs, keys: usize) -> Result<Serving> {
    let LoadArgs { max_num_seqs: sequences, kv_cache: kv_bytes, swap_space: host_kv_bytes, .. } = *load;
    let (sessions, session_idle) = (load.max_sessions as usize, Duration::from_secs(load.session_ttl.into()));
    let serving = Serving {
        sequences,
        kv_bytes,
        host_kv_bytes,
        sessions,
        sessions_per_key: sessions_per_key(sessions, keys),
        session_idle,
        hook_bytes: load.hook_memory,
        longest_pause: Duration::from_secs(load.max_pause.into()),
        steering_dir: load.steering_dir.clone(),
        ..Serving::default()
    };
    Ok(match (&load.scheduler, &load.policy) {
        (Some(file), _) => serving.scheduler_file(file)?,
        (None, Some(name)) => serving.policy(name)?,
        (None, None) => serving,
    })
}

fn limits(load: &LoadArgs) -> Result<Limits> {
    let Ok(body_bytes) = usize::try_from(load.max_body) else {
        bail!("--max-body {} is more than this machine can address", load.max_body)
    };
    Ok(Limits {
        body_bytes,
        requests: load.max_requests as usize,
        connections: load.max_connections as usize,
        drain_time: Duration::from_secs(load.drain.into()),
        ..Limits::default()
    })
}

fn access(host: IpAddr, args: &AccessArgs) -> AccessRules {
    let mut access = AccessRules::at(host);
    if !args.allowed_host.is_empty() {
        access.hosts = Some(args.allowed_host.clone());
    }
    access.origins.clone_from(&args.allowed_origin);
    access
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_key_may_have_all_sessions_and_each_of_several_a_quarter() {
        let of_keys = |keys: &[&str]| sessions_per_key(100_000, Keys::new(keys).unwrap().len());
        assert_eq!((of_keys(&[]), of_keys(&["a"]), of_keys(&["a", "a"])), (100_000, 100_000, 100_000));
        assert_eq!((of_keys(&["a", "b"]), sessions_per_key(4096, 2)), (25_000, 1024));
        assert_eq!(sessions_per_key(1, 2), 1);
    }
}
