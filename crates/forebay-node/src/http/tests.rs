#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::io::{Read, Write};
use std::net::TcpStream;

use forebay::ByteBudget;

use super::*;

fn served() -> (Board, Server) {
    let board = Board::new(ByteBudget::new(1 << 20));
    let server = serve("127.0.0.1:0", &board).unwrap();
    (board, server)
}

/// Sends bytes, and gives what comes back until the connection is closed.
fn send(server: &Server, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    // The server may have answered and closed before everything was sent.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn get(server: &Server, path: &str) -> (u16, String, String) {
    let answer = send(
        server,
        format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes(),
    );
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split_whitespace().nth(1).unwrap().parse().unwrap();
    (status, head.to_lowercase(), body.to_owned())
}

#[test]
fn each_path_has_its_answer() {
    let (board, server) = served();
    let (status, head, body) = get(&server, "/metrics");
    assert_eq!(status, 200);
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    assert!(body.contains("# TYPE forebay_rows_total counter"));
    let (status, head, body) = get(&server, "/status");
    assert!(status == 200 && head.contains("application/json"));
    let read: crate::Status = serde_json::from_str(&body).unwrap();
    assert_eq!(read.memory.limit, board.status().memory.limit);
    let (status, head, body) = get(&server, "/");
    assert!(status == 200 && head.contains("text/html") && body.contains("<!doctype html>"));
    assert!(head.contains("content-security-policy: default-src 'none'"), "{head}");
    assert_eq!((get(&server, "/page.css").0, get(&server, "/page.js").0), (200, 200));
    assert_eq!(get(&server, "/nothing").0, 404);
    assert_eq!((get(&server, "/livez").0, get(&server, "/livez").2), (200, "ok\n".into()));
}

#[test]
fn it_is_ready_between_start_and_stop() {
    let (board, server) = served();
    let ready = || (get(&server, "/readyz").0, get(&server, "/readyz").2);
    assert_eq!(ready(), (503, "starting\n".into()));
    board.health().ready();
    assert_eq!(ready(), (200, "ok\n".into()));
    board.health().stopping();
    assert_eq!(ready(), (503, "stopping\n".into()));
    assert_eq!(get(&server, "/livez").0, 200, "a daemon that stops is alive");
}

#[test]
fn what_a_client_can_send_is_bounded() {
    let (_board, server) = served();
    let long = format!("GET /status HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "x".repeat(2 * HEAD));
    assert!(send(&server, long.as_bytes()).starts_with("HTTP/1.1 431"));
    assert!(send(&server, b"\x16\x03\x01 not http\r\n\r\n").starts_with("HTTP/1.1 400"));
    let post = b"POST /status HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\nmuch";
    assert!(send(&server, post).starts_with("HTTP/1.1 405"));
    assert_eq!(get(&server, "/livez").0, 200);
}

/// Reads until the server closes the connection.
fn closed(mut stream: TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    all
}

#[test]
fn connections_that_are_silent_or_old_end_and_make_place_for_others() {
    let board = Board::new(ByteBudget::new(1 << 20));
    let limits = Limits { connections: 3, request: Duration::from_millis(100), ..LIMITS };
    let server = serve_within(limits, "127.0.0.1:0", &board).unwrap();
    let connect = || TcpStream::connect(server.address()).unwrap();
    // As many as there are places: silent, in the middle of a head, silent after an answer.
    let (silent, mut half, mut idle) = (connect(), connect(), connect());
    half.write_all(b"GET /livez HTTP/1.1\r\nHos").unwrap();
    idle.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    assert_eq!(get(&server, "/livez").0, 200);
    assert!(closed(silent).is_empty());
    closed(half);
    assert!(closed(idle).starts_with(b"HTTP/1.1 200"));

    // One that asks again and again has an end as well.
    let limits = Limits { life: Duration::from_millis(100), ..LIMITS };
    let server = serve_within(limits, "127.0.0.1:0", &board).unwrap();
    let mut busy = TcpStream::connect(server.address()).unwrap();
    while busy.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n").is_ok() {
        match busy.read(&mut [0; 1024]) {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
    }
}

#[test]
fn an_address_that_cannot_be_had_is_named_with_a_way_out() {
    let (board, server) = served();
    let taken = server.address().to_string();
    let Err(e) = serve(&taken, &board) else { panic!("{taken} was had twice") };
    assert!(e.message().contains(&taken) && e.hint().unwrap().contains("port 0"), "{e}");
    let Err(e) = serve("192.0.2.1:1", &board) else { panic!("an address for examples") };
    assert!(e.message().contains("192.0.2.1:1") && e.hint().unwrap().contains("0.0.0.0"), "{e}");
    for wrong in ["9090", "localhost", "", "a b:1"] {
        let Err(e) = serve(wrong, &board) else { panic!("{wrong} is no address") };
        assert!(e.is_usage() && e.hint().unwrap().contains("127.0.0.1:9090"), "{e}");
    }
    drop(server);
    assert!(serve(&taken, &board).is_ok(), "a server that was dropped listens no more");
}
