//! Style and script that the parser's page and the server's live page have in common.
#![no_std]

/// Style sheet. The pages add their own rules after it.
pub const STYLE: &str = include_str!("page.css");

/// Functions that build elements. What comes from profiles is set as text only. The pages' own
/// scripts follow it.
pub const SCRIPT: &str = include_str!("dom.js");
