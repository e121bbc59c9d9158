//! Cards, notes and handshakes by themselves.
