//! nginx as a plain proxy, for comparison.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::process::Process;

/// Tuned as for production: connections to the application are kept, and `reuseport` spreads
/// clients evenly over the workers. The defaults would close every connection after 1,000
/// requests and so measure handshakes. All files are in the temporary directory. Workers run
/// as root where the benchmark does, since Debian's user cannot enter it; elsewhere that line is ignored.
const CONFIG: &str = r#"
daemon off;
user root root;
worker_processes auto;
pid nginx.pid;
error_log error.log warn;
events { worker_connections 4096; }
http {
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    keepalive_requests 1000000000;
    upstream application {
        server UPSTREAM;
        keepalive 128;
        keepalive_requests 1000000000;
    }
    server {
        listen LISTEN reuseport;
        location / {
            proxy_pass http://application;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
        }
    }
}
"#;

/// Starts nginx in `directory`, in front of `upstream`.
pub(crate) fn start(program: &Path, upstream: SocketAddr, directory: &Path) -> Result<Process> {
    // nginx does not print the port it took, so it gets a free one.
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let config = CONFIG
        .replace("UPSTREAM", &upstream.to_string())
        .replace("LISTEN", &address.to_string());
    let config_file = directory.join("nginx.conf");
    std::fs::write(&config_file, config).context("cannot write nginx's configuration")?;
    let command = || {
        let mut command = Command::new(program);
        command.arg("-p").arg(directory).arg("-c").arg(&config_file);
        command
    };
    let mut stop = command();
    stop.args(["-s", "stop"]);
    Process::connectable(command(), stop, address, directory)
}
