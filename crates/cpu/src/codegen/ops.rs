//! Vector instructions by name: one [`VOp`] stands for the encodings of an instruction at every
//! register width, so selection names an operation and a width and never an encoding.

use iced_x86::Code;
use tilewright_plan::mapping::CpuIsa;

use super::lir::W;

/// The encodings of one instruction: VEX at 128 and 256 bits, EVEX at 128, 256 and 512.
/// [`Code::INVALID`] where there is none.
#[derive(Clone, Copy, Debug)]
pub struct VOp {
    codes: [Code; 5],
    /// Which operand may be memory instead of a register, if any: with VEX and with EVEX.
    memory: [Option<u8>; 2],
    /// With EVEX, bytes of the element that the memory operand may repeat; 0 for none.
    pub repeats: u8,
}

impl VOp {
    /// The encoding for an instruction set and a register width. With AVX-512 every width is
    /// EVEX-encoded (so that all 32 registers can be named); with AVX2 nothing is.
    pub fn code(self, isa: CpuIsa, width: W) -> Code {
        let at = match (isa == CpuIsa::Avx512, width) {
            (false, W::X) => 0,
            (false, W::Y) => 1,
            (true, W::X) => 2,
            (true, W::Y) => 3,
            (true, W::Z) => 4,
            _ => return Code::INVALID,
        };
        self.codes[at]
    }

    /// Which operand may be memory instead of a register, if any.
    pub fn memory(self, isa: CpuIsa) -> Option<u8> {
        self.memory[usize::from(isa == CpuIsa::Avx512)]
    }
}

const fn memory(operand: u8) -> Option<u8> {
    if operand == 0 { None } else { Some(operand) }
}

/// Name, operand that may be memory with VEX and with EVEX (0: none), bytes that it may repeat,
/// encodings.
macro_rules! vops {
    ($($name:ident $vex:literal $evex:literal $repeats:literal =
        $a:ident, $b:ident, $c:ident, $d:ident, $e:ident;)*) => {
        $(
            #[allow(missing_docs)]
            pub const $name: VOp = VOp {
                codes: [Code::$a, Code::$b, Code::$c, Code::$d, Code::$e],
                memory: [memory($vex), memory($evex)],
                repeats: $repeats,
            };
        )*
        /// Every operation with its name, for the test that checks all of them.
        pub const ALL: &[(&str, VOp)] = &[$((stringify!($name), $name)),*];
    };
}

#[rustfmt::skip]
vops! {
    ADDPS 2 2 4 = VEX_Vaddps_xmm_xmm_xmmm128, VEX_Vaddps_ymm_ymm_ymmm256, EVEX_Vaddps_xmm_k1z_xmm_xmmm128b32, EVEX_Vaddps_ymm_k1z_ymm_ymmm256b32, EVEX_Vaddps_zmm_k1z_zmm_zmmm512b32_er;
    ADDPD 2 2 8 = VEX_Vaddpd_xmm_xmm_xmmm128, VEX_Vaddpd_ymm_ymm_ymmm256, EVEX_Vaddpd_xmm_k1z_xmm_xmmm128b64, EVEX_Vaddpd_ymm_k1z_ymm_ymmm256b64, EVEX_Vaddpd_zmm_k1z_zmm_zmmm512b64_er;
    SUBPS 2 2 4 = VEX_Vsubps_xmm_xmm_xmmm128, VEX_Vsubps_ymm_ymm_ymmm256, EVEX_Vsubps_xmm_k1z_xmm_xmmm128b32, EVEX_Vsubps_ymm_k1z_ymm_ymmm256b32, EVEX_Vsubps_zmm_k1z_zmm_zmmm512b32_er;
    SUBPD 2 2 8 = VEX_Vsubpd_xmm_xmm_xmmm128, VEX_Vsubpd_ymm_ymm_ymmm256, EVEX_Vsubpd_xmm_k1z_xmm_xmmm128b64, EVEX_Vsubpd_ymm_k1z_ymm_ymmm256b64, EVEX_Vsubpd_zmm_k1z_zmm_zmmm512b64_er;
    MULPS 2 2 4 = VEX_Vmulps_xmm_xmm_xmmm128, VEX_Vmulps_ymm_ymm_ymmm256, EVEX_Vmulps_xmm_k1z_xmm_xmmm128b32, EVEX_Vmulps_ymm_k1z_ymm_ymmm256b32, EVEX_Vmulps_zmm_k1z_zmm_zmmm512b32_er;
    MULPD 2 2 8 = VEX_Vmulpd_xmm_xmm_xmmm128, VEX_Vmulpd_ymm_ymm_ymmm256, EVEX_Vmulpd_xmm_k1z_xmm_xmmm128b64, EVEX_Vmulpd_ymm_k1z_ymm_ymmm256b64, EVEX_Vmulpd_zmm_k1z_zmm_zmmm512b64_er;
    DIVPS 2 2 4 = VEX_Vdivps_xmm_xmm_xmmm128, VEX_Vdivps_ymm_ymm_ymmm256, EVEX_Vdivps_xmm_k1z_xmm_xmmm128b32, EVEX_Vdivps_ymm_k1z_ymm_ymmm256b32, EVEX_Vdivps_zmm_k1z_zmm_zmmm512b32_er;
    DIVPD 2 2 8 = VEX_Vdivpd_xmm_xmm_xmmm128, VEX_Vdivpd_ymm_ymm_ymmm256, EVEX_Vdivpd_xmm_k1z_xmm_xmmm128b64, EVEX_Vdivpd_ymm_k1z_ymm_ymmm256b64, EVEX_Vdivpd_zmm_k1z_zmm_zmmm512b64_er;
    MAXPS 2 2 4 = VEX_Vmaxps_xmm_xmm_xmmm128, VEX_Vmaxps_ymm_ymm_ymmm256, EVEX_Vmaxps_xmm_k1z_xmm_xmmm128b32, EVEX_Vmaxps_ymm_k1z_ymm_ymmm256b32, EVEX_Vmaxps_zmm_k1z_zmm_zmmm512b32_sae;
    MAXPD 2 2 8 = VEX_Vmaxpd_xmm_xmm_xmmm128, VEX_Vmaxpd_ymm_ymm_ymmm256, EVEX_Vmaxpd_xmm_k1z_xmm_xmmm128b64, EVEX_Vmaxpd_ymm_k1z_ymm_ymmm256b64, EVEX_Vmaxpd_zmm_k1z_zmm_zmmm512b64_sae;
    MINPS 2 2 4 = VEX_Vminps_xmm_xmm_xmmm128, VEX_Vminps_ymm_ymm_ymmm256, EVEX_Vminps_xmm_k1z_xmm_xmmm128b32, EVEX_Vminps_ymm_k1z_ymm_ymmm256b32, EVEX_Vminps_zmm_k1z_zmm_zmmm512b32_sae;
    MINPD 2 2 8 = VEX_Vminpd_xmm_xmm_xmmm128, VEX_Vminpd_ymm_ymm_ymmm256, EVEX_Vminpd_xmm_k1z_xmm_xmmm128b64, EVEX_Vminpd_ymm_k1z_ymm_ymmm256b64, EVEX_Vminpd_zmm_k1z_zmm_zmmm512b64_sae;
    SQRTPS 1 1 4 = VEX_Vsqrtps_xmm_xmmm128, VEX_Vsqrtps_ymm_ymmm256, EVEX_Vsqrtps_xmm_k1z_xmmm128b32, EVEX_Vsqrtps_ymm_k1z_ymmm256b32, EVEX_Vsqrtps_zmm_k1z_zmmm512b32_er;
    SQRTPD 1 1 8 = VEX_Vsqrtpd_xmm_xmmm128, VEX_Vsqrtpd_ymm_ymmm256, EVEX_Vsqrtpd_xmm_k1z_xmmm128b64, EVEX_Vsqrtpd_ymm_k1z_ymmm256b64, EVEX_Vsqrtpd_zmm_k1z_zmmm512b64_er;
    FMADD213PS 2 2 4 = VEX_Vfmadd213ps_xmm_xmm_xmmm128, VEX_Vfmadd213ps_ymm_ymm_ymmm256, EVEX_Vfmadd213ps_xmm_k1z_xmm_xmmm128b32, EVEX_Vfmadd213ps_ymm_k1z_ymm_ymmm256b32, EVEX_Vfmadd213ps_zmm_k1z_zmm_zmmm512b32_er;
    FMADD213PD 2 2 8 = VEX_Vfmadd213pd_xmm_xmm_xmmm128, VEX_Vfmadd213pd_ymm_ymm_ymmm256, EVEX_Vfmadd213pd_xmm_k1z_xmm_xmmm128b64, EVEX_Vfmadd213pd_ymm_k1z_ymm_ymmm256b64, EVEX_Vfmadd213pd_zmm_k1z_zmm_zmmm512b64_er;
    FMADD231PS 2 2 4 = VEX_Vfmadd231ps_xmm_xmm_xmmm128, VEX_Vfmadd231ps_ymm_ymm_ymmm256, EVEX_Vfmadd231ps_xmm_k1z_xmm_xmmm128b32, EVEX_Vfmadd231ps_ymm_k1z_ymm_ymmm256b32, EVEX_Vfmadd231ps_zmm_k1z_zmm_zmmm512b32_er;
    FMADD231PD 2 2 8 = VEX_Vfmadd231pd_xmm_xmm_xmmm128, VEX_Vfmadd231pd_ymm_ymm_ymmm256, EVEX_Vfmadd231pd_xmm_k1z_xmm_xmmm128b64, EVEX_Vfmadd231pd_ymm_k1z_ymm_ymmm256b64, EVEX_Vfmadd231pd_zmm_k1z_zmm_zmmm512b64_er;
    FNMADD213PS 2 2 4 = VEX_Vfnmadd213ps_xmm_xmm_xmmm128, VEX_Vfnmadd213ps_ymm_ymm_ymmm256, EVEX_Vfnmadd213ps_xmm_k1z_xmm_xmmm128b32, EVEX_Vfnmadd213ps_ymm_k1z_ymm_ymmm256b32, EVEX_Vfnmadd213ps_zmm_k1z_zmm_zmmm512b32_er;
    FNMADD213PD 2 2 8 = VEX_Vfnmadd213pd_xmm_xmm_xmmm128, VEX_Vfnmadd213pd_ymm_ymm_ymmm256, EVEX_Vfnmadd213pd_xmm_k1z_xmm_xmmm128b64, EVEX_Vfnmadd213pd_ymm_k1z_ymm_ymmm256b64, EVEX_Vfnmadd213pd_zmm_k1z_zmm_zmmm512b64_er;
    FNMADD231PS 2 2 4 = VEX_Vfnmadd231ps_xmm_xmm_xmmm128, VEX_Vfnmadd231ps_ymm_ymm_ymmm256, EVEX_Vfnmadd231ps_xmm_k1z_xmm_xmmm128b32, EVEX_Vfnmadd231ps_ymm_k1z_ymm_ymmm256b32, EVEX_Vfnmadd231ps_zmm_k1z_zmm_zmmm512b32_er;
    FNMADD231PD 2 2 8 = VEX_Vfnmadd231pd_xmm_xmm_xmmm128, VEX_Vfnmadd231pd_ymm_ymm_ymmm256, EVEX_Vfnmadd231pd_xmm_k1z_xmm_xmmm128b64, EVEX_Vfnmadd231pd_ymm_k1z_ymm_ymmm256b64, EVEX_Vfnmadd231pd_zmm_k1z_zmm_zmmm512b64_er;
    ANDPS 2 2 4 = VEX_Vandps_xmm_xmm_xmmm128, VEX_Vandps_ymm_ymm_ymmm256, EVEX_Vandps_xmm_k1z_xmm_xmmm128b32, EVEX_Vandps_ymm_k1z_ymm_ymmm256b32, EVEX_Vandps_zmm_k1z_zmm_zmmm512b32;
    ANDNPS 2 2 4 = VEX_Vandnps_xmm_xmm_xmmm128, VEX_Vandnps_ymm_ymm_ymmm256, EVEX_Vandnps_xmm_k1z_xmm_xmmm128b32, EVEX_Vandnps_ymm_k1z_ymm_ymmm256b32, EVEX_Vandnps_zmm_k1z_zmm_zmmm512b32;
    ORPS 2 2 4 = VEX_Vorps_xmm_xmm_xmmm128, VEX_Vorps_ymm_ymm_ymmm256, EVEX_Vorps_xmm_k1z_xmm_xmmm128b32, EVEX_Vorps_ymm_k1z_ymm_ymmm256b32, EVEX_Vorps_zmm_k1z_zmm_zmmm512b32;
    XORPS 2 2 4 = VEX_Vxorps_xmm_xmm_xmmm128, VEX_Vxorps_ymm_ymm_ymmm256, EVEX_Vxorps_xmm_k1z_xmm_xmmm128b32, EVEX_Vxorps_ymm_k1z_ymm_ymmm256b32, EVEX_Vxorps_zmm_k1z_zmm_zmmm512b32;
    TERNLOGD 0 2 4 = INVALID, INVALID, EVEX_Vpternlogd_xmm_k1z_xmm_xmmm128b32_imm8, EVEX_Vpternlogd_ymm_k1z_ymm_ymmm256b32_imm8, EVEX_Vpternlogd_zmm_k1z_zmm_zmmm512b32_imm8;
    PADDD 2 2 4 = VEX_Vpaddd_xmm_xmm_xmmm128, VEX_Vpaddd_ymm_ymm_ymmm256, EVEX_Vpaddd_xmm_k1z_xmm_xmmm128b32, EVEX_Vpaddd_ymm_k1z_ymm_ymmm256b32, EVEX_Vpaddd_zmm_k1z_zmm_zmmm512b32;
    PADDQ 2 2 8 = VEX_Vpaddq_xmm_xmm_xmmm128, VEX_Vpaddq_ymm_ymm_ymmm256, EVEX_Vpaddq_xmm_k1z_xmm_xmmm128b64, EVEX_Vpaddq_ymm_k1z_ymm_ymmm256b64, EVEX_Vpaddq_zmm_k1z_zmm_zmmm512b64;
    PSUBD 2 2 4 = VEX_Vpsubd_xmm_xmm_xmmm128, VEX_Vpsubd_ymm_ymm_ymmm256, EVEX_Vpsubd_xmm_k1z_xmm_xmmm128b32, EVEX_Vpsubd_ymm_k1z_ymm_ymmm256b32, EVEX_Vpsubd_zmm_k1z_zmm_zmmm512b32;
    PSUBQ 2 2 8 = VEX_Vpsubq_xmm_xmm_xmmm128, VEX_Vpsubq_ymm_ymm_ymmm256, EVEX_Vpsubq_xmm_k1z_xmm_xmmm128b64, EVEX_Vpsubq_ymm_k1z_ymm_ymmm256b64, EVEX_Vpsubq_zmm_k1z_zmm_zmmm512b64;
    PMULLD 2 2 4 = VEX_Vpmulld_xmm_xmm_xmmm128, VEX_Vpmulld_ymm_ymm_ymmm256, EVEX_Vpmulld_xmm_k1z_xmm_xmmm128b32, EVEX_Vpmulld_ymm_k1z_ymm_ymmm256b32, EVEX_Vpmulld_zmm_k1z_zmm_zmmm512b32;
    PMULLQ 0 2 8 = INVALID, INVALID, EVEX_Vpmullq_xmm_k1z_xmm_xmmm128b64, EVEX_Vpmullq_ymm_k1z_ymm_ymmm256b64, EVEX_Vpmullq_zmm_k1z_zmm_zmmm512b64;
    PMULUDQ 2 2 8 = VEX_Vpmuludq_xmm_xmm_xmmm128, VEX_Vpmuludq_ymm_ymm_ymmm256, EVEX_Vpmuludq_xmm_k1z_xmm_xmmm128b64, EVEX_Vpmuludq_ymm_k1z_ymm_ymmm256b64, EVEX_Vpmuludq_zmm_k1z_zmm_zmmm512b64;
    PMINSD 2 2 4 = VEX_Vpminsd_xmm_xmm_xmmm128, VEX_Vpminsd_ymm_ymm_ymmm256, EVEX_Vpminsd_xmm_k1z_xmm_xmmm128b32, EVEX_Vpminsd_ymm_k1z_ymm_ymmm256b32, EVEX_Vpminsd_zmm_k1z_zmm_zmmm512b32;
    PMAXSD 2 2 4 = VEX_Vpmaxsd_xmm_xmm_xmmm128, VEX_Vpmaxsd_ymm_ymm_ymmm256, EVEX_Vpmaxsd_xmm_k1z_xmm_xmmm128b32, EVEX_Vpmaxsd_ymm_k1z_ymm_ymmm256b32, EVEX_Vpmaxsd_zmm_k1z_zmm_zmmm512b32;
    PMINSQ 0 2 8 = INVALID, INVALID, EVEX_Vpminsq_xmm_k1z_xmm_xmmm128b64, EVEX_Vpminsq_ymm_k1z_ymm_ymmm256b64, EVEX_Vpminsq_zmm_k1z_zmm_zmmm512b64;
    PMAXSQ 0 2 8 = INVALID, INVALID, EVEX_Vpmaxsq_xmm_k1z_xmm_xmmm128b64, EVEX_Vpmaxsq_ymm_k1z_ymm_ymmm256b64, EVEX_Vpmaxsq_zmm_k1z_zmm_zmmm512b64;
    PMINUD 2 2 4 = VEX_Vpminud_xmm_xmm_xmmm128, VEX_Vpminud_ymm_ymm_ymmm256, EVEX_Vpminud_xmm_k1z_xmm_xmmm128b32, EVEX_Vpminud_ymm_k1z_ymm_ymmm256b32, EVEX_Vpminud_zmm_k1z_zmm_zmmm512b32;
    PSLLD 0 1 4 = VEX_Vpslld_xmm_xmm_imm8, VEX_Vpslld_ymm_ymm_imm8, EVEX_Vpslld_xmm_k1z_xmmm128b32_imm8, EVEX_Vpslld_ymm_k1z_ymmm256b32_imm8, EVEX_Vpslld_zmm_k1z_zmmm512b32_imm8;
    PSRLD 0 1 4 = VEX_Vpsrld_xmm_xmm_imm8, VEX_Vpsrld_ymm_ymm_imm8, EVEX_Vpsrld_xmm_k1z_xmmm128b32_imm8, EVEX_Vpsrld_ymm_k1z_ymmm256b32_imm8, EVEX_Vpsrld_zmm_k1z_zmmm512b32_imm8;
    PSRAD 0 1 4 = VEX_Vpsrad_xmm_xmm_imm8, VEX_Vpsrad_ymm_ymm_imm8, EVEX_Vpsrad_xmm_k1z_xmmm128b32_imm8, EVEX_Vpsrad_ymm_k1z_ymmm256b32_imm8, EVEX_Vpsrad_zmm_k1z_zmmm512b32_imm8;
    PSLLQ 0 1 8 = VEX_Vpsllq_xmm_xmm_imm8, VEX_Vpsllq_ymm_ymm_imm8, EVEX_Vpsllq_xmm_k1z_xmmm128b64_imm8, EVEX_Vpsllq_ymm_k1z_ymmm256b64_imm8, EVEX_Vpsllq_zmm_k1z_zmmm512b64_imm8;
    PSRLQ 0 1 8 = VEX_Vpsrlq_xmm_xmm_imm8, VEX_Vpsrlq_ymm_ymm_imm8, EVEX_Vpsrlq_xmm_k1z_xmmm128b64_imm8, EVEX_Vpsrlq_ymm_k1z_ymmm256b64_imm8, EVEX_Vpsrlq_zmm_k1z_zmmm512b64_imm8;
    PCMPEQD 2 2 0 = VEX_Vpcmpeqd_xmm_xmm_xmmm128, VEX_Vpcmpeqd_ymm_ymm_ymmm256, INVALID, INVALID, INVALID;
    PCMPGTD 2 2 0 = VEX_Vpcmpgtd_xmm_xmm_xmmm128, VEX_Vpcmpgtd_ymm_ymm_ymmm256, INVALID, INVALID, INVALID;
    PCMPEQQ 2 2 0 = VEX_Vpcmpeqq_xmm_xmm_xmmm128, VEX_Vpcmpeqq_ymm_ymm_ymmm256, INVALID, INVALID, INVALID;
    PCMPGTQ 2 2 0 = VEX_Vpcmpgtq_xmm_xmm_xmmm128, VEX_Vpcmpgtq_ymm_ymm_ymmm256, INVALID, INVALID, INVALID;
    PCMPD 0 2 4 = INVALID, INVALID, EVEX_Vpcmpd_kr_k1_xmm_xmmm128b32_imm8, EVEX_Vpcmpd_kr_k1_ymm_ymmm256b32_imm8, EVEX_Vpcmpd_kr_k1_zmm_zmmm512b32_imm8;
    PCMPQ 0 2 8 = INVALID, INVALID, EVEX_Vpcmpq_kr_k1_xmm_xmmm128b64_imm8, EVEX_Vpcmpq_kr_k1_ymm_ymmm256b64_imm8, EVEX_Vpcmpq_kr_k1_zmm_zmmm512b64_imm8;
    CMPPS 2 2 4 = VEX_Vcmpps_xmm_xmm_xmmm128_imm8, VEX_Vcmpps_ymm_ymm_ymmm256_imm8, EVEX_Vcmpps_kr_k1_xmm_xmmm128b32_imm8, EVEX_Vcmpps_kr_k1_ymm_ymmm256b32_imm8, EVEX_Vcmpps_kr_k1_zmm_zmmm512b32_imm8_sae;
    CMPPD 2 2 8 = VEX_Vcmppd_xmm_xmm_xmmm128_imm8, VEX_Vcmppd_ymm_ymm_ymmm256_imm8, EVEX_Vcmppd_kr_k1_xmm_xmmm128b64_imm8, EVEX_Vcmppd_kr_k1_ymm_ymmm256b64_imm8, EVEX_Vcmppd_kr_k1_zmm_zmmm512b64_imm8_sae;
    MOVAPS 1 1 0 = VEX_Vmovaps_xmm_xmmm128, VEX_Vmovaps_ymm_ymmm256, EVEX_Vmovaps_xmm_k1z_xmmm128, EVEX_Vmovaps_ymm_k1z_ymmm256, EVEX_Vmovaps_zmm_k1z_zmmm512;
    MOVUPS 1 1 0 = VEX_Vmovups_xmm_xmmm128, VEX_Vmovups_ymm_ymmm256, EVEX_Vmovups_xmm_k1z_xmmm128, EVEX_Vmovups_ymm_k1z_ymmm256, EVEX_Vmovups_zmm_k1z_zmmm512;
    MOVUPS_ST 0 0 0 = VEX_Vmovups_xmmm128_xmm, VEX_Vmovups_ymmm256_ymm, EVEX_Vmovups_xmmm128_k1z_xmm, EVEX_Vmovups_ymmm256_k1z_ymm, EVEX_Vmovups_zmmm512_k1z_zmm;
    MOVUPD 1 1 0 = VEX_Vmovupd_xmm_xmmm128, VEX_Vmovupd_ymm_ymmm256, EVEX_Vmovupd_xmm_k1z_xmmm128, EVEX_Vmovupd_ymm_k1z_ymmm256, EVEX_Vmovupd_zmm_k1z_zmmm512;
    MOVUPD_ST 0 0 0 = VEX_Vmovupd_xmmm128_xmm, VEX_Vmovupd_ymmm256_ymm, EVEX_Vmovupd_xmmm128_k1z_xmm, EVEX_Vmovupd_ymmm256_k1z_ymm, EVEX_Vmovupd_zmmm512_k1z_zmm;
    MOVDQU16 0 1 0 = INVALID, INVALID, EVEX_Vmovdqu16_xmm_k1z_xmmm128, EVEX_Vmovdqu16_ymm_k1z_ymmm256, EVEX_Vmovdqu16_zmm_k1z_zmmm512;
    MOVDQU16_ST 0 0 0 = INVALID, INVALID, EVEX_Vmovdqu16_xmmm128_k1z_xmm, EVEX_Vmovdqu16_ymmm256_k1z_ymm, EVEX_Vmovdqu16_zmmm512_k1z_zmm;
    MOVNTPS 0 0 0 = VEX_Vmovntps_m128_xmm, VEX_Vmovntps_m256_ymm, EVEX_Vmovntps_m128_xmm, EVEX_Vmovntps_m256_ymm, EVEX_Vmovntps_m512_zmm;
    PBROADCASTW 1 1 0 = VEX_Vpbroadcastw_xmm_xmmm16, VEX_Vpbroadcastw_ymm_xmmm16, EVEX_Vpbroadcastw_xmm_k1z_xmmm16, EVEX_Vpbroadcastw_ymm_k1z_xmmm16, EVEX_Vpbroadcastw_zmm_k1z_xmmm16;
    PBROADCASTD 1 1 0 = VEX_Vpbroadcastd_xmm_xmmm32, VEX_Vpbroadcastd_ymm_xmmm32, EVEX_Vpbroadcastd_xmm_k1z_xmmm32, EVEX_Vpbroadcastd_ymm_k1z_xmmm32, EVEX_Vpbroadcastd_zmm_k1z_xmmm32;
    PBROADCASTQ 1 1 0 = VEX_Vpbroadcastq_xmm_xmmm64, VEX_Vpbroadcastq_ymm_xmmm64, EVEX_Vpbroadcastq_xmm_k1z_xmmm64, EVEX_Vpbroadcastq_ymm_k1z_xmmm64, EVEX_Vpbroadcastq_zmm_k1z_xmmm64;
    PBROADCASTD_R 0 0 0 = INVALID, INVALID, EVEX_Vpbroadcastd_xmm_k1z_r32, EVEX_Vpbroadcastd_ymm_k1z_r32, EVEX_Vpbroadcastd_zmm_k1z_r32;
    PBROADCASTQ_R 0 0 0 = INVALID, INVALID, EVEX_Vpbroadcastq_xmm_k1z_r64, EVEX_Vpbroadcastq_ymm_k1z_r64, EVEX_Vpbroadcastq_zmm_k1z_r64;
    CVTDQ2PS 1 1 4 = VEX_Vcvtdq2ps_xmm_xmmm128, VEX_Vcvtdq2ps_ymm_ymmm256, EVEX_Vcvtdq2ps_xmm_k1z_xmmm128b32, EVEX_Vcvtdq2ps_ymm_k1z_ymmm256b32, EVEX_Vcvtdq2ps_zmm_k1z_zmmm512b32_er;
    CVTTPS2DQ 1 1 4 = VEX_Vcvttps2dq_xmm_xmmm128, VEX_Vcvttps2dq_ymm_ymmm256, EVEX_Vcvttps2dq_xmm_k1z_xmmm128b32, EVEX_Vcvttps2dq_ymm_k1z_ymmm256b32, EVEX_Vcvttps2dq_zmm_k1z_zmmm512b32_sae;
    CVTPS2DQ 1 1 4 = VEX_Vcvtps2dq_xmm_xmmm128, VEX_Vcvtps2dq_ymm_ymmm256, EVEX_Vcvtps2dq_xmm_k1z_xmmm128b32, EVEX_Vcvtps2dq_ymm_k1z_ymmm256b32, EVEX_Vcvtps2dq_zmm_k1z_zmmm512b32_er;
    CVTPS2PD 1 1 4 = VEX_Vcvtps2pd_xmm_xmmm64, VEX_Vcvtps2pd_ymm_xmmm128, EVEX_Vcvtps2pd_xmm_k1z_xmmm64b32, EVEX_Vcvtps2pd_ymm_k1z_xmmm128b32, EVEX_Vcvtps2pd_zmm_k1z_ymmm256b32_sae;
    CVTPD2PS 1 1 8 = VEX_Vcvtpd2ps_xmm_xmmm128, VEX_Vcvtpd2ps_xmm_ymmm256, EVEX_Vcvtpd2ps_xmm_k1z_xmmm128b64, EVEX_Vcvtpd2ps_xmm_k1z_ymmm256b64, EVEX_Vcvtpd2ps_ymm_k1z_zmmm512b64_er;
    CVTDQ2PD 1 1 4 = VEX_Vcvtdq2pd_xmm_xmmm64, VEX_Vcvtdq2pd_ymm_xmmm128, EVEX_Vcvtdq2pd_xmm_k1z_xmmm64b32, EVEX_Vcvtdq2pd_ymm_k1z_xmmm128b32, EVEX_Vcvtdq2pd_zmm_k1z_ymmm256b32_er;
    CVTTPD2DQ 1 1 8 = VEX_Vcvttpd2dq_xmm_xmmm128, VEX_Vcvttpd2dq_xmm_ymmm256, EVEX_Vcvttpd2dq_xmm_k1z_xmmm128b64, EVEX_Vcvttpd2dq_xmm_k1z_ymmm256b64, EVEX_Vcvttpd2dq_ymm_k1z_zmmm512b64_sae;
    CVTPH2PS 1 1 0 = VEX_Vcvtph2ps_xmm_xmmm64, VEX_Vcvtph2ps_ymm_xmmm128, EVEX_Vcvtph2ps_xmm_k1z_xmmm64, EVEX_Vcvtph2ps_ymm_k1z_xmmm128, EVEX_Vcvtph2ps_zmm_k1z_ymmm256_sae;
    CVTPS2PH 0 0 0 = VEX_Vcvtps2ph_xmmm64_xmm_imm8, VEX_Vcvtps2ph_xmmm128_ymm_imm8, EVEX_Vcvtps2ph_xmmm64_k1z_xmm_imm8, EVEX_Vcvtps2ph_xmmm128_k1z_ymm_imm8, EVEX_Vcvtps2ph_ymmm256_k1z_zmm_imm8_sae;
    CVTQQ2PD 0 1 8 = INVALID, INVALID, EVEX_Vcvtqq2pd_xmm_k1z_xmmm128b64, EVEX_Vcvtqq2pd_ymm_k1z_ymmm256b64, EVEX_Vcvtqq2pd_zmm_k1z_zmmm512b64_er;
    CVTQQ2PS 0 1 8 = INVALID, INVALID, EVEX_Vcvtqq2ps_xmm_k1z_xmmm128b64, EVEX_Vcvtqq2ps_xmm_k1z_ymmm256b64, EVEX_Vcvtqq2ps_ymm_k1z_zmmm512b64_er;
    CVTTPD2QQ 0 1 8 = INVALID, INVALID, EVEX_Vcvttpd2qq_xmm_k1z_xmmm128b64, EVEX_Vcvttpd2qq_ymm_k1z_ymmm256b64, EVEX_Vcvttpd2qq_zmm_k1z_zmmm512b64_sae;
    CVTTPS2QQ 0 1 4 = INVALID, INVALID, EVEX_Vcvttps2qq_xmm_k1z_xmmm64b32, EVEX_Vcvttps2qq_ymm_k1z_xmmm128b32, EVEX_Vcvttps2qq_zmm_k1z_ymmm256b32_sae;
    PMOVZXWD 1 1 0 = VEX_Vpmovzxwd_xmm_xmmm64, VEX_Vpmovzxwd_ymm_xmmm128, EVEX_Vpmovzxwd_xmm_k1z_xmmm64, EVEX_Vpmovzxwd_ymm_k1z_xmmm128, EVEX_Vpmovzxwd_zmm_k1z_ymmm256;
    PMOVSXDQ 1 1 0 = VEX_Vpmovsxdq_xmm_xmmm64, VEX_Vpmovsxdq_ymm_xmmm128, EVEX_Vpmovsxdq_xmm_k1z_xmmm64, EVEX_Vpmovsxdq_ymm_k1z_xmmm128, EVEX_Vpmovsxdq_zmm_k1z_ymmm256;
    PMOVDW 0 0 0 = INVALID, INVALID, EVEX_Vpmovdw_xmmm64_k1z_xmm, EVEX_Vpmovdw_xmmm128_k1z_ymm, EVEX_Vpmovdw_ymmm256_k1z_zmm;
    PMOVQD 0 0 0 = INVALID, INVALID, EVEX_Vpmovqd_xmmm64_k1z_xmm, EVEX_Vpmovqd_xmmm128_k1z_ymm, EVEX_Vpmovqd_ymmm256_k1z_zmm;
    PACKUSDW 2 2 4 = VEX_Vpackusdw_xmm_xmm_xmmm128, VEX_Vpackusdw_ymm_ymm_ymmm256, EVEX_Vpackusdw_xmm_k1z_xmm_xmmm128b32, EVEX_Vpackusdw_ymm_k1z_ymm_ymmm256b32, EVEX_Vpackusdw_zmm_k1z_zmm_zmmm512b32;
    PACKSSDW 2 2 4 = VEX_Vpackssdw_xmm_xmm_xmmm128, VEX_Vpackssdw_ymm_ymm_ymmm256, EVEX_Vpackssdw_xmm_k1z_xmm_xmmm128b32, EVEX_Vpackssdw_ymm_k1z_ymm_ymmm256b32, EVEX_Vpackssdw_zmm_k1z_zmm_zmmm512b32;
    SHUFPS 2 2 4 = VEX_Vshufps_xmm_xmm_xmmm128_imm8, VEX_Vshufps_ymm_ymm_ymmm256_imm8, EVEX_Vshufps_xmm_k1z_xmm_xmmm128b32_imm8, EVEX_Vshufps_ymm_k1z_ymm_ymmm256b32_imm8, EVEX_Vshufps_zmm_k1z_zmm_zmmm512b32_imm8;
    PERMILPS 1 1 4 = VEX_Vpermilps_xmm_xmmm128_imm8, VEX_Vpermilps_ymm_ymmm256_imm8, EVEX_Vpermilps_xmm_k1z_xmmm128b32_imm8, EVEX_Vpermilps_ymm_k1z_ymmm256b32_imm8, EVEX_Vpermilps_zmm_k1z_zmmm512b32_imm8;
    PERMILPD 1 1 8 = VEX_Vpermilpd_xmm_xmmm128_imm8, VEX_Vpermilpd_ymm_ymmm256_imm8, EVEX_Vpermilpd_xmm_k1z_xmmm128b64_imm8, EVEX_Vpermilpd_ymm_k1z_ymmm256b64_imm8, EVEX_Vpermilpd_zmm_k1z_zmmm512b64_imm8;
    PERMPS 2 2 4 = INVALID, VEX_Vpermps_ymm_ymm_ymmm256, INVALID, EVEX_Vpermps_ymm_k1z_ymm_ymmm256b32, EVEX_Vpermps_zmm_k1z_zmm_zmmm512b32;
    PERMQ 1 1 8 = INVALID, VEX_Vpermq_ymm_ymmm256_imm8, INVALID, EVEX_Vpermq_ymm_k1z_ymmm256b64_imm8, EVEX_Vpermq_zmm_k1z_zmmm512b64_imm8;
    SHUFF32X4 0 2 4 = INVALID, INVALID, INVALID, EVEX_Vshuff32x4_ymm_k1z_ymm_ymmm256b32_imm8, EVEX_Vshuff32x4_zmm_k1z_zmm_zmmm512b32_imm8;
    PERM2F128 2 2 0 = INVALID, VEX_Vperm2f128_ymm_ymm_ymmm256_imm8, INVALID, INVALID, INVALID;
    BLENDPS 2 2 4 = VEX_Vblendvps_xmm_xmm_xmmm128_xmm, VEX_Vblendvps_ymm_ymm_ymmm256_ymm, EVEX_Vblendmps_xmm_k1z_xmm_xmmm128b32, EVEX_Vblendmps_ymm_k1z_ymm_ymmm256b32, EVEX_Vblendmps_zmm_k1z_zmm_zmmm512b32;
    BLENDPD 2 2 8 = VEX_Vblendvpd_xmm_xmm_xmmm128_xmm, VEX_Vblendvpd_ymm_ymm_ymmm256_ymm, EVEX_Vblendmpd_xmm_k1z_xmm_xmmm128b64, EVEX_Vblendmpd_ymm_k1z_ymm_ymmm256b64, EVEX_Vblendmpd_zmm_k1z_zmm_zmmm512b64;
    PBLENDW 0 2 0 = INVALID, INVALID, EVEX_Vpblendmw_xmm_k1z_xmm_xmmm128, EVEX_Vpblendmw_ymm_k1z_ymm_ymmm256, EVEX_Vpblendmw_zmm_k1z_zmm_zmmm512;
    PBLENDVB 2 2 0 = VEX_Vpblendvb_xmm_xmm_xmmm128_xmm, VEX_Vpblendvb_ymm_ymm_ymmm256_ymm, INVALID, INVALID, INVALID;
    ROUNDPS 1 1 4 = VEX_Vroundps_xmm_xmmm128_imm8, VEX_Vroundps_ymm_ymmm256_imm8, EVEX_Vrndscaleps_xmm_k1z_xmmm128b32_imm8, EVEX_Vrndscaleps_ymm_k1z_ymmm256b32_imm8, EVEX_Vrndscaleps_zmm_k1z_zmmm512b32_imm8_sae;
    ROUNDPD 1 1 8 = VEX_Vroundpd_xmm_xmmm128_imm8, VEX_Vroundpd_ymm_ymmm256_imm8, EVEX_Vrndscalepd_xmm_k1z_xmmm128b64_imm8, EVEX_Vrndscalepd_ymm_k1z_ymmm256b64_imm8, EVEX_Vrndscalepd_zmm_k1z_zmmm512b64_imm8_sae;
    SCALEFPS 0 2 4 = INVALID, INVALID, EVEX_Vscalefps_xmm_k1z_xmm_xmmm128b32, EVEX_Vscalefps_ymm_k1z_ymm_ymmm256b32, EVEX_Vscalefps_zmm_k1z_zmm_zmmm512b32_er;
    SCALEFPD 0 2 8 = INVALID, INVALID, EVEX_Vscalefpd_xmm_k1z_xmm_xmmm128b64, EVEX_Vscalefpd_ymm_k1z_ymm_ymmm256b64, EVEX_Vscalefpd_zmm_k1z_zmm_zmmm512b64_er;
    GETEXPPS 0 1 4 = INVALID, INVALID, EVEX_Vgetexpps_xmm_k1z_xmmm128b32, EVEX_Vgetexpps_ymm_k1z_ymmm256b32, EVEX_Vgetexpps_zmm_k1z_zmmm512b32_sae;
    GETEXPPD 0 1 8 = INVALID, INVALID, EVEX_Vgetexppd_xmm_k1z_xmmm128b64, EVEX_Vgetexppd_ymm_k1z_ymmm256b64, EVEX_Vgetexppd_zmm_k1z_zmmm512b64_sae;
    GETMANTPS 0 1 4 = INVALID, INVALID, EVEX_Vgetmantps_xmm_k1z_xmmm128b32_imm8, EVEX_Vgetmantps_ymm_k1z_ymmm256b32_imm8, EVEX_Vgetmantps_zmm_k1z_zmmm512b32_imm8_sae;
    GETMANTPD 0 1 8 = INVALID, INVALID, EVEX_Vgetmantpd_xmm_k1z_xmmm128b64_imm8, EVEX_Vgetmantpd_ymm_k1z_ymmm256b64_imm8, EVEX_Vgetmantpd_zmm_k1z_zmmm512b64_imm8_sae;
    MASKMOVPS 0 0 0 = VEX_Vmaskmovps_xmm_xmm_m128, VEX_Vmaskmovps_ymm_ymm_m256, INVALID, INVALID, INVALID;
    MASKMOVPS_ST 0 0 0 = VEX_Vmaskmovps_m128_xmm_xmm, VEX_Vmaskmovps_m256_ymm_ymm, INVALID, INVALID, INVALID;
    MASKMOVPD 0 0 0 = VEX_Vmaskmovpd_xmm_xmm_m128, VEX_Vmaskmovpd_ymm_ymm_m256, INVALID, INVALID, INVALID;
    MASKMOVPD_ST 0 0 0 = VEX_Vmaskmovpd_m128_xmm_xmm, VEX_Vmaskmovpd_m256_ymm_ymm, INVALID, INVALID, INVALID;
    GATHERDPS 0 0 0 = VEX_Vgatherdps_xmm_vm32x_xmm, VEX_Vgatherdps_ymm_vm32y_ymm, EVEX_Vgatherdps_xmm_k1_vm32x, EVEX_Vgatherdps_ymm_k1_vm32y, EVEX_Vgatherdps_zmm_k1_vm32z;
    GATHERDPD 0 0 0 = VEX_Vgatherdpd_xmm_vm32x_xmm, VEX_Vgatherdpd_ymm_vm32x_ymm, EVEX_Vgatherdpd_xmm_k1_vm32x, EVEX_Vgatherdpd_ymm_k1_vm32x, EVEX_Vgatherdpd_zmm_k1_vm32y;
    GATHERQPS 0 0 0 = VEX_Vgatherqps_xmm_vm64x_xmm, VEX_Vgatherqps_xmm_vm64y_xmm, EVEX_Vgatherqps_xmm_k1_vm64x, EVEX_Vgatherqps_xmm_k1_vm64y, EVEX_Vgatherqps_ymm_k1_vm64z;
    GATHERQPD 0 0 0 = VEX_Vgatherqpd_xmm_vm64x_xmm, VEX_Vgatherqpd_ymm_vm64y_ymm, EVEX_Vgatherqpd_xmm_k1_vm64x, EVEX_Vgatherqpd_ymm_k1_vm64y, EVEX_Vgatherqpd_zmm_k1_vm64z;
    SCATTERDPS 0 0 0 = INVALID, INVALID, EVEX_Vscatterdps_vm32x_k1_xmm, EVEX_Vscatterdps_vm32y_k1_ymm, EVEX_Vscatterdps_vm32z_k1_zmm;
    SCATTERDPD 0 0 0 = INVALID, INVALID, EVEX_Vscatterdpd_vm32x_k1_xmm, EVEX_Vscatterdpd_vm32x_k1_ymm, EVEX_Vscatterdpd_vm32y_k1_zmm;
    SCATTERQPS 0 0 0 = INVALID, INVALID, EVEX_Vscatterqps_vm64x_k1_xmm, EVEX_Vscatterqps_vm64y_k1_xmm, EVEX_Vscatterqps_vm64z_k1_ymm;
    SCATTERQPD 0 0 0 = INVALID, INVALID, EVEX_Vscatterqpd_vm64x_k1_xmm, EVEX_Vscatterqpd_vm64y_k1_ymm, EVEX_Vscatterqpd_vm64z_k1_zmm;
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::OpCodeOperandKind::*;

    /// The table's word on memory operands is the encoder's.
    #[test]
    fn memory_operands_are_those_of_the_encodings() {
        let takes_memory = |code: Code, n: u32| {
            let kind = code.op_code().try_op_kind(n);
            matches!(kind, Ok(xmm_or_mem | ymm_or_mem | zmm_or_mem))
        };
        for (name, op) in ALL {
            for (at, code) in op.codes.iter().enumerate() {
                if *code == Code::INVALID {
                    continue;
                }
                let info = code.op_code();
                if let Some(n) = op.memory[usize::from(at >= 2)] {
                    assert!(takes_memory(*code, n.into()), "{name} {code:?}");
                    let source = (0..info.op_count()).filter(|n| takes_memory(*code, *n)).count();
                    assert_eq!(source, 1, "{name} {code:?}");
                }
                if at >= 2 && op.memory[1].is_some() {
                    let element = if info.can_broadcast() {
                        info.broadcast_memory_size().element_size()
                    } else {
                        0
                    };
                    assert_eq!(usize::from(op.repeats), element, "{name} {code:?}");
                }
            }
        }
    }

    #[test]
    fn nothing_of_avx2_is_evex() {
        for (name, op) in ALL {
            for width in [W::X, W::Y] {
                let code = op.code(CpuIsa::Avx2, width);
                let encoding = code.op_code().encoding();
                let fine = code == Code::INVALID || encoding == iced_x86::EncodingKind::VEX;
                assert!(fine, "{name} {code:?}");
            }
        }
    }
}
