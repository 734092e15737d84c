; x86-64-v3

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias readonly captures(none) align 4 %B, ptr noalias captures(none) align 4 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = urem i64 %n, 4
  %.5 = icmp eq i64 %.4, 1
  br i1 %.5, label %then.6, label %join.7
then.6:
  %.8 = udiv i64 %n, 8
  %.11 = icmp slt i64 0, %.8
  br i1 %.11, label %i_body.9, label %i_done.10
i_body.9:
  %i.12 = phi i64 [ 0, %then.6 ], [ %i_next.17, %i_body.9 ]
  %.13 = mul nsw i64 %i.12, 8
  %.14 = getelementptr float, ptr %A, i64 %.13
  %.15 = load <8 x float>, ptr %.14, align 4
  %.16 = getelementptr float, ptr %C, i64 %.13
  store <8 x float> %.15, ptr %.16, align 4
  %i_next.17 = add nuw nsw i64 %i.12, 1
  %.18 = icmp slt i64 %i_next.17, %.8
  br i1 %.18, label %i_body.9, label %i_done.10, !llvm.loop !0
i_done.10:
  br label %join.7
join.7:
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
  %.4 = urem i64 %n, 4
  %.5 = icmp eq i64 %.4, 1
  br i1 %.5, label %then.6, label %join.7
then.6:
  %.8 = udiv i64 %n, 8
  %.11 = icmp slt i64 0, %.8
  br i1 %.11, label %i_body.9, label %i_done.10
i_body.9:
  %i.12 = phi i64 [ 0, %then.6 ], [ %i_next.17, %i_body.9 ]
  %.13 = mul nsw i64 %i.12, 8
  %.14 = getelementptr float, ptr %A, i64 %.13
  %.15 = load <8 x float>, ptr %.14, align 4
  %.16 = getelementptr float, ptr %C, i64 %.13
  store <8 x float> %.15, ptr %.16, align 4
  %i_next.17 = add nuw nsw i64 %i.12, 1
  %.18 = icmp slt i64 %i_next.17, %.8
  br i1 %.18, label %i_body.9, label %i_done.10, !llvm.loop !0
i_done.10:
  br label %join.7
join.7:
  br label %join.2
join.2:
  ret void
}


!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
