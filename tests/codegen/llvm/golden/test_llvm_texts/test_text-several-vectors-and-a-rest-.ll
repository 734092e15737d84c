; x86-64-v3

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias readonly captures(none) align 4 %B, ptr noalias captures(none) align 4 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = udiv i64 %n, 24
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_body.5, label %i_done.6
i_body.5:
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.28, %i_body.5 ]
  %.9 = mul nsw i64 %i.8, 24
  %.10 = getelementptr float, ptr %A, i64 %.9
  %.11 = load <8 x float>, ptr %.10, align 4
  %.12 = getelementptr float, ptr %.10, i64 8
  %.13 = load <8 x float>, ptr %.12, align 4
  %.14 = getelementptr float, ptr %.10, i64 16
  %.15 = load <8 x float>, ptr %.14, align 4
  %.16 = getelementptr float, ptr %B, i64 %.9
  %.17 = load <8 x float>, ptr %.16, align 4
  %.18 = getelementptr float, ptr %.16, i64 8
  %.19 = load <8 x float>, ptr %.18, align 4
  %.20 = getelementptr float, ptr %.16, i64 16
  %.21 = load <8 x float>, ptr %.20, align 4
  %.22 = fdiv <8 x float> %.11, %.17
  %.23 = fdiv <8 x float> %.13, %.19
  %.24 = fdiv <8 x float> %.15, %.21
  %.25 = getelementptr float, ptr %C, i64 %.9
  store <8 x float> %.22, ptr %.25, align 4
  %.26 = getelementptr float, ptr %.25, i64 8
  store <8 x float> %.23, ptr %.26, align 4
  %.27 = getelementptr float, ptr %.25, i64 16
  store <8 x float> %.24, ptr %.27, align 4
  %i_next.28 = add nuw nsw i64 %i.8, 1
  %.29 = icmp slt i64 %i_next.28, %.4
  br i1 %.29, label %i_body.5, label %i_done.6, !llvm.loop !0
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
  %.4 = udiv i64 %n, 24
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_body.5, label %i_done.6
i_body.5:
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.22, %i_body.5 ]
  %.9 = mul nsw i64 %i.8, 24
  %.10 = getelementptr float, ptr %A, i64 %.9
  %.11 = load <16 x float>, ptr %.10, align 4
  %.12 = getelementptr float, ptr %.10, i64 16
  %.13 = load <8 x float>, ptr %.12, align 4
  %.14 = getelementptr float, ptr %B, i64 %.9
  %.15 = load <16 x float>, ptr %.14, align 4
  %.16 = getelementptr float, ptr %.14, i64 16
  %.17 = load <8 x float>, ptr %.16, align 4
  %.18 = fdiv <16 x float> %.11, %.15
  %.19 = fdiv <8 x float> %.13, %.17
  %.20 = getelementptr float, ptr %C, i64 %.9
  store <16 x float> %.18, ptr %.20, align 4
  %.21 = getelementptr float, ptr %.20, i64 16
  store <8 x float> %.19, ptr %.21, align 4
  %i_next.22 = add nuw nsw i64 %i.8, 1
  %.23 = icmp slt i64 %i_next.22, %.4
  br i1 %.23, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  br label %join.2
join.2:
  ret void
}


!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
