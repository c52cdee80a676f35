//! Prints docs/server-fields.md.

fn main() {
    print!("{}", djinn_server::fields::document());
}
