//! Generated code as text, with the kernel's statements in between.

use std::fmt::Write;

use iced_x86::{Decoder, DecoderOptions, Formatter, IntelFormatter};
use tilewright_kernel::kernel::{Kernel, Stmt};

use crate::codegen::Code;

/// Disassembles. Every run of instructions is headed by the statement that it comes from
/// (statements are numbered in the order of the kernel's text); instructions that were moved out
/// of loops stand under the statement before the loop.
pub fn disassemble(kernel: &Kernel, code: &Code) -> String {
    let mut statements: Vec<&Stmt> = Vec::new();
    kernel.body.walk(&mut |stmt| statements.push(stmt));
    let mut heads = code.blob.statements.iter().peekable();
    let mut out = String::new();
    let bytes = &code.blob.bytes;
    // Writing to a string can't fail.
    let _ = writeln!(
        out,
        "; kernel {}: {} bytes of code after {} bytes of constants",
        kernel.name,
        bytes.len() - code.blob.entry,
        code.blob.entry
    );
    let mut formatter = IntelFormatter::new();
    let options = formatter.options_mut();
    options.set_hex_prefix("0x");
    options.set_hex_suffix("");
    options.set_space_after_operand_separator(true);
    options.set_rip_relative_addresses(true);
    let start = code.blob.entry;
    let mut decoder = Decoder::with_ip(64, &bytes[start..], start as u64, DecoderOptions::NONE);
    let mut text = String::new();
    while decoder.can_decode() {
        let at = decoder.position() + start;
        while let Some((number, _)) = heads.next_if(|(_, offset)| *offset <= at) {
            // Statements without code of their own are named only when code follows.
            let empty = heads.peek().is_some_and(|(_, offset)| *offset <= at);
            if let (Some(stmt), false) = (statements.get(*number as usize), empty) {
                let _ = writeln!(out, "; {number}: {}", describe(kernel, stmt));
            }
        }
        let instruction = decoder.decode();
        text.clear();
        formatter.format(&instruction, &mut text);
        let _ = writeln!(out, "{at:6x}  {text}");
    }
    out
}

/// A statement in one line, without its blocks.
fn describe(kernel: &Kernel, stmt: &Stmt) -> String {
    let text = tilewright_kernel::text::statement(kernel, stmt);
    text.lines().next().unwrap_or_default().trim().to_string()
}
