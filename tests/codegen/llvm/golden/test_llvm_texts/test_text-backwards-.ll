; x86-64-v3

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias readonly captures(none) align 4 %B, ptr noalias captures(none) align 4 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = udiv i64 %n, 8
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_body.5, label %i_done.6
i_body.5:
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.17, %i_body.5 ]
  %.9 = mul nsw i64 %i.8, -8
  %.10 = add nsw i64 %n, %.9
  %.11 = getelementptr float, ptr %A, i64 %.10
  %.12 = getelementptr float, ptr %.11, i64 -8
  %.13 = load <8 x float>, ptr %.12, align 4
  %.14 = shufflevector <8 x float> %.13, <8 x float> poison, <8 x i32> <i32 7, i32 6, i32 5, i32 4, i32 3, i32 2, i32 1, i32 0>
  %.15 = mul nsw i64 %i.8, 8
  %.16 = getelementptr float, ptr %C, i64 %.15
  store <8 x float> %.14, ptr %.16, align 4
  %i_next.17 = add nuw nsw i64 %i.8, 1
  %.18 = icmp slt i64 %i_next.17, %.4
  br i1 %.18, label %i_body.5, label %i_done.6, !llvm.loop !0
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
  %.4 = udiv i64 %n, 8
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_body.5, label %i_done.6
i_body.5:
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.17, %i_body.5 ]
  %.9 = mul nsw i64 %i.8, -8
  %.10 = add nsw i64 %n, %.9
  %.11 = getelementptr float, ptr %A, i64 %.10
  %.12 = getelementptr float, ptr %.11, i64 -8
  %.13 = load <8 x float>, ptr %.12, align 4
  %.14 = shufflevector <8 x float> %.13, <8 x float> poison, <8 x i32> <i32 7, i32 6, i32 5, i32 4, i32 3, i32 2, i32 1, i32 0>
  %.15 = mul nsw i64 %i.8, 8
  %.16 = getelementptr float, ptr %C, i64 %.15
  store <8 x float> %.14, ptr %.16, align 4
  %i_next.17 = add nuw nsw i64 %i.8, 1
  %.18 = icmp slt i64 %i_next.17, %.4
  br i1 %.18, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  br label %join.2
join.2:
  ret void
}


!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
