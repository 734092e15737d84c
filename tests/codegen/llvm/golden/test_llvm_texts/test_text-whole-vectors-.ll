; x86-64-v3

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias readonly captures(none) align 4 %B, ptr noalias captures(none) align 4 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = udiv i64 %n, 16
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_body.5, label %i_done.6
i_body.5:
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.24, %i_body.5 ]
  %.9 = mul nsw i64 %i.8, 16
  %.10 = getelementptr float, ptr %A, i64 %.9
  %.11 = load <8 x float>, ptr %.10, align 4
  %.12 = getelementptr float, ptr %.10, i64 8
  %.13 = load <8 x float>, ptr %.12, align 4
  %.14 = getelementptr float, ptr %B, i64 %.9
  %.15 = load <8 x float>, ptr %.14, align 4
  %.16 = getelementptr float, ptr %.14, i64 8
  %.17 = load <8 x float>, ptr %.16, align 4
  %.18 = fmul contract <8 x float> %.11, %.15
  %.19 = fmul contract <8 x float> %.13, %.17
  %.20 = fadd contract <8 x float> %.18, splat (float 0x3FF0000000000000)
  %.21 = fadd contract <8 x float> %.19, splat (float 0x3FF0000000000000)
  %.22 = getelementptr float, ptr %C, i64 %.9
  store <8 x float> %.20, ptr %.22, align 4
  %.23 = getelementptr float, ptr %.22, i64 8
  store <8 x float> %.21, ptr %.23, align 4
  %i_next.24 = add nuw nsw i64 %i.8, 1
  %.25 = icmp slt i64 %i_next.24, %.4
  br i1 %.25, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  br label %join.2
join.2:
  ret void
}


!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
; znver4

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias readonly captures(none) align 4 %B, ptr noalias captures(none) align 4 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = udiv i64 %n, 16
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_body.5, label %i_done.6
i_body.5:
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.17, %i_body.5 ]
  %.9 = mul nsw i64 %i.8, 16
  %.10 = getelementptr float, ptr %A, i64 %.9
  %.11 = load <16 x float>, ptr %.10, align 4
  %.12 = getelementptr float, ptr %B, i64 %.9
  %.13 = load <16 x float>, ptr %.12, align 4
  %.14 = fmul contract <16 x float> %.11, %.13
  %.15 = fadd contract <16 x float> %.14, splat (float 0x3FF0000000000000)
  %.16 = getelementptr float, ptr %C, i64 %.9
  store <16 x float> %.15, ptr %.16, align 4
  %i_next.17 = add nuw nsw i64 %i.8, 1
  %.18 = icmp slt i64 %i_next.17, %.4
  br i1 %.18, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  br label %join.2
join.2:
  ret void
}


!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
