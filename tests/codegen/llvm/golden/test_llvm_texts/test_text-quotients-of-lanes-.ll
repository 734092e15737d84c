; x86-64-v3

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias captures(none) align 4 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = udiv i64 %n, 16
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_body.5, label %i_done.6
i_body.5:
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.16, %i_body.5 ]
  %.9 = mul nsw i64 %i.8, 16
  %.10 = getelementptr float, ptr %A, i64 %.9
  %.11 = load <8 x float>, ptr %.10, align 4
  %.12 = getelementptr float, ptr %.10, i64 8
  %.13 = load <8 x float>, ptr %.12, align 4
  %.14 = getelementptr float, ptr %C, i64 %.9
  store <8 x float> %.11, ptr %.14, align 4
  %.15 = getelementptr float, ptr %.14, i64 8
  store <8 x float> %.13, ptr %.15, align 4
  %i_next.16 = add nuw nsw i64 %i.8, 1
  %.17 = icmp slt i64 %i_next.16, %.4
  br i1 %.17, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  br label %join.2
join.2:
  ret void
}


!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
; znver4

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias captures(none) align 4 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = udiv i64 %n, 16
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_body.5, label %i_done.6
i_body.5:
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.13, %i_body.5 ]
  %.9 = mul nsw i64 %i.8, 16
  %.10 = getelementptr float, ptr %A, i64 %.9
  %.11 = load <16 x float>, ptr %.10, align 4
  %.12 = getelementptr float, ptr %C, i64 %.9
  store <16 x float> %.11, ptr %.12, align 4
  %i_next.13 = add nuw nsw i64 %i.8, 1
  %.14 = icmp slt i64 %i_next.13, %.4
  br i1 %.14, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  br label %join.2
join.2:
  ret void
}


!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
