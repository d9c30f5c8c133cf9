//! Prints the OpenAPI document. `cargo xtask openapi` writes it to `openapi.json`.

fn main() {
    print!("{}", tenure_server::api::document_text(&tenure_cli::apps::installed()));
}
