; x86-64-v3

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias readonly captures(none) align 4 %B, ptr noalias captures(none) align 4 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = udiv i64 %n, 5
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_body.5, label %i_done.6
i_body.5:
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.15, %i_body.5 ]
  %.9 = mul nsw i64 %i.8, 5
  %.10 = getelementptr float, ptr %A, i64 %.9
  %.11 = load <5 x float>, ptr %.10, align 4
  %.12 = load <5 x float>, ptr %B, align 4
  %.13 = fsub contract <5 x float> %.11, %.12
  %.14 = getelementptr float, ptr %C, i64 %.9
  store <5 x float> %.13, ptr %.14, align 4
  %i_next.15 = add nuw nsw i64 %i.8, 1
  %.16 = icmp slt i64 %i_next.15, %.4
  br i1 %.16, label %i_body.5, label %i_done.6, !llvm.loop !0
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
  %.4 = udiv i64 %n, 5
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_body.5, label %i_done.6
i_body.5:
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.15, %i_body.5 ]
  %.9 = mul nsw i64 %i.8, 5
  %.10 = getelementptr float, ptr %A, i64 %.9
  %.11 = load <5 x float>, ptr %.10, align 4
  %.12 = load <5 x float>, ptr %B, align 4
  %.13 = fsub contract <5 x float> %.11, %.12
  %.14 = getelementptr float, ptr %C, i64 %.9
  store <5 x float> %.13, ptr %.14, align 4
  %i_next.15 = add nuw nsw i64 %i.8, 1
  %.16 = icmp slt i64 %i_next.15, %.4
  br i1 %.16, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  br label %join.2
join.2:
  ret void
}


!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
