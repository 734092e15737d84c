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
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.23, %i_body.5 ]
  %.9 = getelementptr float, ptr %A, i64 %i.8
  %.10 = load <2 x float>, ptr %.9, align 4
  %.11 = shufflevector <2 x float> %.10, <2 x float> poison, <8 x i32> <i32 0, i32 0, i32 0, i32 0, i32 1, i32 1, i32 1, i32 1>
  %.12 = getelementptr float, ptr %.9, i64 2
  %.13 = load <2 x float>, ptr %.12, align 4
  %.14 = shufflevector <2 x float> %.13, <2 x float> poison, <8 x i32> <i32 0, i32 0, i32 0, i32 0, i32 1, i32 1, i32 1, i32 1>
  %.15 = load <4 x float>, ptr %B, align 4
  %.16 = shufflevector <4 x float> %.15, <4 x float> poison, <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 0, i32 1, i32 2, i32 3>
  %.17 = shufflevector <4 x float> %.15, <4 x float> poison, <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 0, i32 1, i32 2, i32 3>
  %.18 = fmul contract <8 x float> %.11, %.16
  %.19 = fmul contract <8 x float> %.14, %.17
  %.20 = mul nsw i64 %i.8, 16
  %.21 = getelementptr float, ptr %C, i64 %.20
  store <8 x float> %.18, ptr %.21, align 4
  %.22 = getelementptr float, ptr %.21, i64 8
  store <8 x float> %.19, ptr %.22, align 4
  %i_next.23 = add nuw nsw i64 %i.8, 1
  %.24 = icmp slt i64 %i_next.23, %.4
  br i1 %.24, label %i_body.5, label %i_done.6, !llvm.loop !0
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
  %.9 = getelementptr float, ptr %A, i64 %i.8
  %.10 = load <4 x float>, ptr %.9, align 4
  %.11 = shufflevector <4 x float> %.10, <4 x float> poison, <16 x i32> <i32 0, i32 0, i32 0, i32 0, i32 1, i32 1, i32 1, i32 1, i32 2, i32 2, i32 2, i32 2, i32 3, i32 3, i32 3, i32 3>
  %.12 = load <4 x float>, ptr %B, align 4
  %.13 = shufflevector <4 x float> %.12, <4 x float> poison, <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 0, i32 1, i32 2, i32 3, i32 0, i32 1, i32 2, i32 3, i32 0, i32 1, i32 2, i32 3>
  %.14 = fmul contract <16 x float> %.11, %.13
  %.15 = mul nsw i64 %i.8, 16
  %.16 = getelementptr float, ptr %C, i64 %.15
  store <16 x float> %.14, ptr %.16, align 4
  %i_next.17 = add nuw nsw i64 %i.8, 1
  %.18 = icmp slt i64 %i_next.17, %.4
  br i1 %.18, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  br label %join.2
join.2:
  ret void
}


!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
